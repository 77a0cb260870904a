"""Files of ours that are written in place: no link is followed, and nothing but a regular file is opened."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.errors import StoreError
from harness.records.contained_files import make_folder, open_to_write, opened_inside, require_plain

KINDS: dict[str, Callable[[Path, Path], object]] = {
    "a symbolic link": lambda path, outside: path.symlink_to(outside),
    "one that has another name": lambda path, outside: os.link(outside, path),
    "a pipe or a device": lambda path, _outside: os.mkfifo(path),
    "a folder": lambda path, _outside: path.mkdir(),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_file_of_ours_is_not_written_to(kind: str, tmp_path: Path) -> None:
    outside, path = tmp_path / "outside", tmp_path / "own"
    outside.write_text("kept")
    KINDS[kind](path, outside)
    with pytest.raises(StoreError, match=f"own must be a file or folder of its own, got {kind}"):
        open_to_write(path)
    assert outside.read_text() == "kept"


def test_a_link_to_nothing_makes_no_file(tmp_path: Path) -> None:
    (tmp_path / "own").symlink_to(tmp_path / "made")
    with pytest.raises(StoreError, match="got a symbolic link"):
        open_to_write(tmp_path / "own")
    assert not (tmp_path / "made").exists()


def test_a_file_of_ours_is_made_and_appended_to(tmp_path: Path) -> None:
    for text in (b"one", b"two"):
        file = open_to_write(tmp_path / "own", is_appended=True)
        os.write(file, text)
        os.close(file)
    assert (tmp_path / "own").read_bytes() == b"onetwo"


def test_a_file_that_is_replaced_keeps_nothing_of_before_and_a_refused_one_all(tmp_path: Path) -> None:
    outside, path = tmp_path / "outside", tmp_path / "own"
    path.write_bytes(b"longer")
    with os.fdopen(open_to_write(path, is_replaced=True), "wb") as file:
        file.write(b"short")
    assert path.read_bytes() == b"short"
    os.link(path, outside)
    with pytest.raises(StoreError, match="another name"):
        open_to_write(path, is_replaced=True)
    assert outside.read_bytes() == b"short"


def test_folders_are_made_without_following_a_link(tmp_path: Path) -> None:
    assert make_folder(tmp_path, "a", "b").is_dir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "a" / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(StoreError, match="link must be a file or folder of its own, got a symbolic link"):
        make_folder(tmp_path, "a", "link", "c")
    assert not any((tmp_path / "outside").iterdir())


def test_a_folder_is_looked_through_for_links_and_pipes(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "a" / "file").touch()
    require_plain(tmp_path)
    os.mkfifo(tmp_path / "a" / "b" / "pipe")
    with pytest.raises(StoreError, match=r"a/b/pipe must be .*, got a pipe or a device"):
        require_plain(tmp_path)


def test_a_folder_that_is_swapped_for_a_link_leads_nowhere_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in (("run", "own"), ("outside", "secret")):
        (tmp_path / name / "case").mkdir(parents=True)
        (tmp_path / name / "case" / "plan.json").write_text(text)
    examine = os.fstat

    def swap(descriptor: int) -> os.stat_result:
        if (tmp_path / "run" / "case").is_dir() and not (tmp_path / "run" / "old").exists():
            (tmp_path / "run" / "case").rename(tmp_path / "run" / "old")
            (tmp_path / "run" / "case").symlink_to(tmp_path / "outside" / "case")
        return examine(descriptor)

    monkeypatch.setattr(os, "fstat", swap)
    with opened_inside(tmp_path / "run", "case", "plan.json") as file:
        assert os.read(file, 10) == b"own"
