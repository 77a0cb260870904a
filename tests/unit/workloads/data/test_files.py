"""Real data by path: what is read, and what is said where it cannot be."""

import hashlib
from pathlib import Path

import numpy as np
import pytest

from workloads.data.files import data_files, not_rated, one_file, read_ratings, read_text
from workloads.data.text import WordPieces, byte_ids, masked_pairs, rows_of, sentences_of
from workloads.protocol import WorkloadError
from workloads.registry import resolve
from workloads.table import WORKLOADS

RATINGS = "1::10::5::978300760\n1::30::3::978302109\n7::10::4::978301968\n7::20::1::978300275\n"
TEXT = "The cat sat on the mat.\n\nA dog saw the cat, and sat.\nDogs run.\n"


def test_a_folder_is_its_files_by_name(tmp_path: Path) -> None:
    for name in ("b.txt", "a.txt", ".hidden"):
        (tmp_path / name).write_text(name)
    (tmp_path / "inner").mkdir()
    files = data_files(str(tmp_path))
    assert [path.name for path in files] == ["a.txt", "b.txt"]
    listing = "".join(f"{hashlib.sha256(p.read_bytes()).hexdigest()}  {p.name}\n" for p in files)
    assert data_files(str(tmp_path), hashlib.sha256(listing.encode()).hexdigest()) == files
    with pytest.raises(WorkloadError, match=r"data must be one file, got '.*' with 2; give the path of one"):
        one_file(str(tmp_path))


def test_a_file_is_what_its_checksum_says(tmp_path: Path) -> None:
    path = tmp_path / "ratings.dat"
    path.write_text(RATINGS)
    digest = hashlib.sha256(RATINGS.encode()).hexdigest()
    assert one_file(str(path), digest) == path
    with pytest.raises(WorkloadError, match=rf"{digest}, got {'0' * 64}; fetch the data anew"):
        one_file(str(path), "0" * 64)


def test_what_is_not_there_or_no_text_is_said(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="which is not there; correct the path, or leave it out"):
        data_files(str(tmp_path / "nothing"))
    with pytest.raises(WorkloadError, match=r"got '.*', an empty folder; correct the path"):
        data_files(str(tmp_path))
    (tmp_path / "latin").write_bytes(b"caf\xe9")
    with pytest.raises(WorkloadError, match=r"text in UTF-8, got byte 0xe9 at 3 of .*latin; convert it"):
        read_text(tmp_path / "latin")


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"data": "ratings.dat"}, "data must be an absolute path, got 'ratings.dat'; write it in full"),
        ({"data": 3}, "data must be an absolute path, got 3"),
        (
            {"data_sha256": "abc"},
            "data_sha256 must be 64 hexadecimal digits, got 'abc'; sha256sum",
        ),
    ],
)
def test_parameters_are_checked(params: dict[str, object], message: str) -> None:
    with pytest.raises(WorkloadError, match=message):
        resolve("ncf", params)


def test_a_parameter_of_the_data_needs_data() -> None:
    with pytest.raises(
        WorkloadError, match="data_sha256 must come with data, got data_sha256 alone; give data"
    ):
        resolve("ncf", {"data_sha256": "0" * 64})
    with pytest.raises(WorkloadError, match="pieces must come with data"):
        resolve("bert-base", {"pieces": "/vocab.txt"})


def test_an_error_names_the_parameter_that_is_wrong(tmp_path: Path) -> None:
    with pytest.raises(WorkloadError, match="pieces must be a file or folder"):
        one_file(str(tmp_path / "nothing"), field="pieces")


def test_home_is_a_place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    param = next(param for param in WORKLOADS["ncf"].params if param.name == "data")
    assert param.read("~/ratings.dat") == str(tmp_path / "ratings.dat")


def test_ratings_number_users_and_items(tmp_path: Path) -> None:
    path = tmp_path / "ratings.dat"
    path.write_text(RATINGS)
    ratings = read_ratings(path)
    assert (ratings.n_users, ratings.n_items) == (2, 3)
    assert list(zip(ratings.users, ratings.items, strict=True)) == [(0, 0), (0, 2), (1, 0), (1, 1)]
    users = np.array([0, 1] * 50)
    # Of three items each user rated two.
    assert list(not_rated(ratings, users, np.random.default_rng(0))) == [1, 2] * 50


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "data must have ratings, got none"),
        (
            "1::2::x::4\n",
            "lines user::item::rating::time, got in .*could not convert string 'x'",
        ),
        ("1::2::3\n", "data must have lines user::item::rating::time"),
        ("1::1::5::0\n", "leave each user an item without rating, got one who rated all 1"),
    ],
)
@pytest.mark.filterwarnings("ignore:loadtxt. input contained no data")
def test_other_lines_are_no_ratings(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "ratings.dat"
    path.write_text(text)
    with pytest.raises(WorkloadError, match=message):
        not_rated(read_ratings(path), np.array([0]), np.random.default_rng(0))


def test_bytes_in_rows(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    (tmp_path / "b").write_bytes(b"\x00\xff")
    ids = byte_ids(data_files(str(tmp_path)), vocabulary=256)
    assert list(ids) == [97, 98, 99, 0, 255]
    assert rows_of(ids, 2, most=9, field="sequence").tolist() == [[97, 98], [99, 0]]
    assert rows_of(ids, 2, most=1, field="sequence").tolist() == [[97, 98]]
    with pytest.raises(WorkloadError, match="sequence must be below the 5 tokens of data, got 5; give more"):
        rows_of(ids, 6, most=1, field="sequence")
    with pytest.raises(WorkloadError, match="at least 256, one number for each byte of data, got 60"):
        byte_ids((), vocabulary=60)


def test_pieces_are_the_longest_that_are_known() -> None:
    pieces = WordPieces.of_text(["cat", "cat", "cats", "dog"], 5 + 7 + 7 + 1)
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"acdgost"]
    names += [f"##{letter}" for letter in "acdgost"] + ["cat"]
    cat, s = names.index("cat"), names.index("##s")
    assert pieces.ids(["cat", "cats"]) == [cat, cat, s]
    assert pieces.ids(["dog"]) == [names.index("d"), names.index("##o"), names.index("##g")]
    assert pieces.ids(["x", "catx", "c" * 101]) == [pieces.unknown] * 3
    with pytest.raises(WorkloadError, match="must be at least 19, for the letters of data, got 18"):
        WordPieces.of_text(["cat", "cats", "dog"], 18)


def test_a_vocabulary_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "vocab.txt"
    path.write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nplay\n##ing\n")
    assert WordPieces.of_file(path, 7).ids(["playing", "go"]) == [5, 6, 1]
    with pytest.raises(WorkloadError, match=r"must be at least 7, the lines of .*, got 6; raise it"):
        WordPieces.of_file(path, 6)
    path.write_text("play\n")
    with pytest.raises(WorkloadError, match=r"pieces must have .*, got .* without \[PAD\], \[UNK\]"):
        WordPieces.of_file(path, 9)


def test_pairs_of_sentences_are_masked(tmp_path: Path) -> None:
    (tmp_path / "text").write_text(TEXT)
    sentences = sentences_of(data_files(str(tmp_path)))
    assert sentences[1] == ["a", "dog", "saw", "the", "cat", ",", "and", "sat", "."]
    pieces = WordPieces.of_text((word for words in sentences for word in words), 60)
    numbered = [pieces.ids(words) for words in sentences]
    n, sequence = 400, 14
    pairs = masked_pairs(
        numbered,
        pieces,
        np.random.default_rng(0),
        vocabulary=60,
        sequence=sequence,
        predictions=3,
        examples=n,
    )
    tokens, masked = pairs["tokens"].copy(), pairs["masked"]
    at_places = np.take_along_axis(tokens, masked, axis=1)
    share_masked, share_kept = (at_places == pieces.mask).mean(), (at_places == pairs["words"]).mean()
    assert 0.75 < share_masked < 0.85
    assert 0.07 < share_kept < 0.16
    np.put_along_axis(tokens, masked, pairs["words"], axis=1)
    following = 0
    for row in range(n):
        whole = tokens[row, : pairs["length"][row]].tolist()
        assert whole[0] == pieces.begin
        assert whole[-1] == pieces.separator
        assert whole.count(pieces.separator) == 2
        assert (tokens[row, len(whole) :] == pieces.padding).all()
        middle = whole.index(pieces.separator)
        left, right = whole[1:middle], whole[middle + 1 : -1]
        assert pairs["sentences"][row].tolist() == [0] * (middle + 1) + [1] * (len(right) + 1) + [0] * (
            sequence - len(whole)
        )
        first = next(k for k, ids in enumerate(numbered) if ids[: len(left)] == left)
        assert any(ids[: len(right)] == right for ids in numbered)
        if pairs["follows"][row]:
            assert numbered[first + 1][: len(right)] == right
        following += pairs["follows"][row]
        assert not {0, middle, len(whole) - 1} & set(masked[row].tolist())
    assert 0.4 < following / n < 0.6


def test_one_sentence_is_no_pair(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("Only one.\n\n")
    with pytest.raises(WorkloadError, match="two sentences or more, one a line, got 1; give more text"):
        sentences_of(data_files(str(tmp_path)))
