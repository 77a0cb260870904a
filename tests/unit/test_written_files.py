"""Every call in our source that opens a file for writing: through `contained_files`, or with a reason."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BY_NAME = frozenset(
    ("write_text", "write_bytes", "touch", "truncate", "symlink_to", "hardlink_to", "mkfifo", "connect")
)
"""Methods and functions that open, or make, a file of a name."""
BY_LIBRARIES = frozenset(("save", "savez", "write_table", "FileHandler", "copyfile", "copy", "copy2"))
ALLOWED = {
    "harness/atomic_files.py": "writes beside the place and renames; what a person named is theirs",
    "harness/records/contained_files.py": "is the way",
    "harness/cli/process.py": "opens /dev/null",
    "harness/provision/network_namespace.py": "writes to /proc",
    "harness/provision/temporary_folder.py": "writes into the private folder that it has just made",
    "harness/provision/ray/settings.py": "makes its token, which must not be there; looks before the log",
    "harness/worker/jobs/batches.py": "writes into the run's private temporary folder",
    "harness/worker/session/capture_store.py": "writes into the run's private temporary folder",
    "harness/provision/cluster/file_archives.py": "writes beside the place and renames",
    "harness/records/steps_file.py": "writes into memory",
    "reports/history/database.py": "looks before SQLite opens it",
}


def writes(tree: ast.AST) -> Iterator[ast.Call]:
    """Calls that open or make a file for writing."""
    for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
        function = call.func
        text = ast.unparse(function)
        if text == "os.open":
            flags = ast.unparse(call)
            if any(flag in flags for flag in ("O_WRONLY", "O_RDWR", "O_CREAT", "flags")):
                yield call
        elif text == "open" or (isinstance(function, ast.Attribute) and function.attr == "open"):
            # Of a path the mode comes first, of the built-in function second.
            mode = [*call.args, *(keyword.value for keyword in call.keywords if keyword.arg == "mode")]
            modes = [mode_node.value for mode_node in mode if isinstance(mode_node, ast.Constant)]
            if any(isinstance(mode, str) and set(mode) & set("wax+") and len(mode) <= 3 for mode in modes):
                yield call
        elif isinstance(function, ast.Attribute) and function.attr in BY_NAME | BY_LIBRARIES:
            if function.attr == "connect" and (
                not text.startswith("sqlite3.") or "':memory:'" in ast.unparse(call)
            ):
                continue
            if function.attr in ("save", "copy") and not text.startswith(("np.", "numpy.", "shutil.")):
                continue
            yield call


def matches() -> dict[str, list[str]]:
    calls = {
        path.relative_to(ROOT).as_posix(): [
            f"line {call.lineno}: {ast.unparse(call)}" for call in writes(ast.parse(path.read_text()))
        ]
        for room in ("harness", "reports")
        for path in sorted((ROOT / room).rglob("*.py"))
    }
    return {path: lines for path, lines in calls.items() if lines}


def test_files_are_written_in_one_way() -> None:
    others = {path: lines for path, lines in matches().items() if path not in ALLOWED}
    assert not others, f"open these through harness.records.contained_files or harness.atomic_files: {others}"


def test_no_exception_is_left_over() -> None:
    assert set(ALLOWED) == set(matches())


@pytest.mark.parametrize(
    "source",
    [
        'open(path, "w")',
        'path.open("ab")',
        'path.open(mode="r+")',
        'path.write_text("x")',
        "os.open(path, os.O_WRONLY | os.O_CREAT)",
        "sqlite3.connect(path)",
        "np.save(path, values)",
    ],
)
def test_each_way_of_writing_is_seen(source: str) -> None:
    assert len(list(writes(ast.parse(source)))) == 1


@pytest.mark.parametrize(
    "source", ['open(path, "rb")', "path.open()", "os.open(path, os.O_RDONLY)", "socket.connect(a)"]
)
def test_reading_is_none(source: str) -> None:
    assert not list(writes(ast.parse(source)))
