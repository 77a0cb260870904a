"""Files that travel: they arrive as they were, where they belong, and only those that were asked for."""

import pickle
from pathlib import Path

import pytest

from harness.provision.cluster.file_archives import listing, pack, unpack


def folder_with(folder: Path, **files: str) -> Path:
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def packed(folder: Path) -> bytes:
    return pack({name: folder / name for name in listing(folder)})


def test_files_arrive_with_their_stamps(tmp_path: Path) -> None:
    there, here = folder_with(tmp_path / "there", a="one", b__c="two"), tmp_path / "here"
    here.mkdir()
    unpack(packed(there), here, {"a", "b/c"})
    assert listing(here) == listing(there)
    assert (here / "b" / "c").read_text() == "two"


def test_what_is_not_wanted_is_left(tmp_path: Path) -> None:
    there = folder_with(tmp_path / "there", a="one", b="two")
    here = folder_with(tmp_path / "here", b="kept")
    unpack(packed(there), here, {"a"})
    assert (here / "b").read_text() == "kept"


def test_who_has_the_old_file_open_keeps_it(tmp_path: Path) -> None:
    there, here = folder_with(tmp_path / "there", a="new"), folder_with(tmp_path / "here", a="old")
    with (here / "a").open() as opened:
        unpack(packed(there), here, {"a"})
        assert opened.read() == "old"
    assert (here / "a").read_text() == "new"


def test_a_change_shows_and_links_do_not(tmp_path: Path) -> None:
    folder = folder_with(tmp_path / "folder", a="one")
    (folder / "link").symlink_to(folder / "a")
    before = listing(folder)
    assert set(before) == {"a"}
    (folder / "a").write_text("longer")
    assert listing(folder) != before


def test_what_vanishes_before_it_is_packed_is_left_out(tmp_path: Path) -> None:
    assert pickle.loads(pack({"gone": tmp_path / "gone"})) == {}


@pytest.mark.parametrize(
    ("name", "below"), [("../a", ""), ("/a", ""), ("tree/../a", "tree/"), ("a", "tree/")]
)
def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str, below: str) -> None:
    archive = pickle.dumps({name: (0, b"")})
    with pytest.raises(ValueError, match="must stay below"):
        unpack(archive, tmp_path / "here", {name}, below=below)
    assert list(tmp_path.iterdir()) == []
