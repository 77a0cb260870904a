"""Test files lie where the module that they test lies, and have its name."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "tests" / "unit"
OF_THE_WHOLE_SOURCE = {"test_damages.py", "test_imports.py", "test_names.py", "test_written_files.py"}
"""Tests of rules that hold in all rooms; they lie in no room's folder."""


def is_named_by_what_it_tests(test: Path, product: Path) -> bool:
    """Tell whether a test's path, from `tests/unit` on, is that of what it tests.

    Args:
        test: Such as `harness/run/test_block.py`, `test_block_<aspect>.py`, or `test_run_<aspect>.py` for all
            of the folder.
        product: The folder that holds the packages.
    """
    folder = product / test.parent
    if not (folder / "__init__.py").is_file():
        return False
    modules = {path.stem for path in folder.glob("*.py")} - {"__init__"}
    packages = {path.parent.name for path in folder.glob("*/__init__.py")}
    name = test.stem.removeprefix("test_")
    return any(name == known or name.startswith(f"{known}_") for known in modules | packages | {folder.name})


def test_each_file_lies_under_what_it_tests() -> None:
    tests = {path.relative_to(UNIT) for path in UNIT.rglob("test_*.py")} - {
        Path(name) for name in OF_THE_WHOLE_SOURCE
    }
    assert tests
    assert [str(test) for test in sorted(tests) if not is_named_by_what_it_tests(test, ROOT)] == []


@pytest.mark.parametrize(
    ("test", "fits"),
    [
        ("room/test_module.py", True),
        ("room/test_module_aspect.py", True),
        ("room/test_room.py", True),
        ("room/test_room_aspect.py", True),
        ("room/test_inner.py", True),
        ("room/inner/test_inner_aspect.py", True),
        ("room/test_modules.py", False),
        ("room/test_aspect.py", False),
        ("room/inner/test_module.py", False),
        ("room/gone/test_gone.py", False),
        ("test_module.py", False),
    ],
)
def test_a_misplaced_file_is_seen(tmp_path: Path, test: str, fits: bool) -> None:
    for source in ("room/__init__.py", "room/module.py", "room/inner/__init__.py"):
        (tmp_path / source).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / source).touch()
    assert is_named_by_what_it_tests(Path(test), tmp_path) is fits
