import json
from pathlib import Path

import pytest

from harness.atomic_files import why_not_writable, write_json


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    path = write_json(tmp_path / "plan.json", {"a": float("nan")})
    assert json.loads(path.read_text()) == {"a": None}
    with pytest.raises(TypeError):
        write_json(path, {"a": object()})
    assert json.loads(path.read_text()) == {"a": None}
    assert [item.name for item in tmp_path.iterdir()] == ["plan.json"]


@pytest.mark.parametrize("path", [Path(), Path("/")])
def test_a_path_without_a_name_is_refused_as_a_folder_is(path: Path) -> None:
    with pytest.raises(IsADirectoryError):
        write_json(path, {})


def test_a_file_is_tried_in_its_folder_which_is_made_and_left_empty(tmp_path: Path) -> None:
    path = tmp_path / "new" / "plan.json"
    assert why_not_writable(path) is None
    assert list(path.parent.iterdir()) == []
    assert why_not_writable(tmp_path) == "Is a directory"
    (tmp_path / "file").touch()
    assert why_not_writable(tmp_path / "file" / "plan.json") in ("File exists", "Not a directory")
