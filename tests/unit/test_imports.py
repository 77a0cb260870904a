"""Rules on imports that import-linter cannot state."""

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path(__file__).resolve().parents[2]
_PRIVATE = ("tensorflow.python", "tensorflow.compiler", "keras.src")


def _sources() -> Iterator[Path]:
    for package in ("harness", "reports", "strategies", "workloads"):
        yield from (_ROOT / package).rglob("*.py")


def _imported(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _is_private(name: str) -> bool:
    return any(name == private or name.startswith(private + ".") for private in _PRIVATE)


def test_private_tensorflow_is_used_in_the_bridge_only() -> None:
    bridge = _ROOT / "strategies" / "tf_bridge"
    users = {path for path in _sources() if any(map(_is_private, _imported(path)))}
    assert {path for path in users if bridge not in path.parents} == set()


@pytest.mark.parametrize(
    ("line", "private"),
    [
        ("from tensorflow.python.framework import ops", True),
        ("import keras.src.backend", True),
        ("from tensorflow import python", True),
        ("import tensorflow as tf", False),
        ("from keras import layers", False),
    ],
)
def test_the_rule_can_fail(tmp_path: Path, line: str, private: bool) -> None:
    path = tmp_path / "x.py"
    path.write_text(line)
    assert any(map(_is_private, _imported(path))) == private


def _rooms(package: str) -> set[str]:
    """Modules and packages directly in a package."""
    paths = (_ROOT / package).rglob("*.py")
    return {path.relative_to(_ROOT / package).parts[0].removesuffix(".py") for path in paths} - {"__init__"}


@pytest.mark.parametrize(
    ("contract", "package", "open_rooms"),
    [
        (
            "reports read stored records only",
            "harness",
            {"atomic_files", "canonical", "errors", "records", "written_values"},
        ),
        (
            "workloads know of strategies how parameters and errors of a user's file read, and nothing else",
            "strategies",
            {"errors", "params", "user_errors"},
        ),
    ],
)
def test_a_contract_lists_every_closed_room(contract: str, package: str, open_rooms: set[str]) -> None:
    settings = tomllib.loads((_ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (forbidden,) = [item["forbidden_modules"] for item in settings["contracts"] if item["name"] == contract]
    listed = {name.removeprefix(f"{package}.") for name in forbidden if name.startswith(package)}
    assert listed == _rooms(package) - open_rooms
    assert not [contract for contract in settings["contracts"] if "ignore_imports" in contract]


def test_reports_import_of_the_harness_records_alone() -> None:
    allowed = ("harness.records", "harness.canonical")  # records, and the JSON that they are written as
    direct = {name for path in (_ROOT / "reports").rglob("*.py") for name in _imported(path)}
    assert not {name for name in direct if name.startswith("harness") and not name.startswith(allowed)}
