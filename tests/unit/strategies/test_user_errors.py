"""Errors of a user's code take one line: the reason, and the line of the file, else the node."""

import json
from pathlib import Path

import pytest

from strategies.user_errors import described, graph_error, line_of_error

REASON = "Incompatible shapes: [2,32] vs. [8,32]"
HEADING = "Graph execution error:\n\n"
ROOTS = f"""  (0) INVALID_ARGUMENT:  {REASON}
\t [[{{{{node a/b}}}}]]
  (1) CANCELLED:  Function was cancelled
0 successful operations."""
DEFINED = """Graph execution error:

Detected at node while/add defined at (most recent call last):
  File "/home/u/.venv/lib/python3.11/site-packages/keras/src/layers/layer.py", line 12, in __call__

  File "/home/u/model.py", line 7, in loss

  File "/home/u/.venv/lib/python3.11/site-packages/keras/src/ops/numpy.py", line 3, in add

"""

MAPPED = (
    "{{function_node __wrapped__IteratorGetNext}} Error in user-defined function passed to MapDataset:5 "
    "transformation with iterator: Iterator::Root::ForeverRepeat[0]::Map: rows are large\n"
    "\t [[{{node check/Assert}}]] [Op:IteratorGetNext] name: "
)
MAPPED_PYTHON = """KeyError: 'missing'
Traceback (most recent call last):

  File "/home/u/model.py", line 3, in f

  File "/home/u/rows.py", line 9, in look
    return names["missing"]

KeyError: 'missing'
"""


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (
            f"Graph execution error:\n\n{REASON}\n\t [[{{{{node while/add}}}}]]",
            f"{REASON}, at node while/add",
        ),
        (
            f"{HEADING}From /job:worker/replica:0/task:1:\n{REASON}\n\t [[{{node while/add}}]]",
            f"{REASON}, at node while/add",
        ),
        (
            f"{REASON}\n\t [[{{{{function_node body_1}}}}{{{{node add}}}}]] [Op:__inference_f_2]",
            f"{REASON}, at node add",
        ),
        (f"{DEFINED}{REASON}\n\t [[{{{{node while/add}}}}]]", f"{REASON}, at /home/u/model.py:7"),
        (
            f"{HEADING}2 root error(s) found.\n{ROOTS}",
            f"{REASON}, at node a/b",
        ),
        (f"From /job:worker/replica:0/task:0:\n{REASON}", REASON),
        ("Graph execution error:\n\n", "Graph execution error:"),
        (MAPPED, "rows are large, at node check/Assert"),
        (MAPPED_PYTHON, "KeyError: 'missing', at /home/u/rows.py:9"),
        ("/gone; No such file or directory [Op:IteratorGetNext] name: ", "/gone; No such file or directory"),
        ("a plain message\nof two lines", "a plain message"),
        ("", "no message"),
    ],
)
def test_a_reason_takes_one_line(message: str, text: str) -> None:
    assert graph_error(message) == text


def rows(names):
    return names["labels"]


def test_the_innermost_line_of_a_users_file_is_named() -> None:
    with pytest.raises(KeyError) as caught:
        rows({})
    place = f"tests/unit/strategies/test_user_errors.py:{rows.__code__.co_firstlineno + 1}"
    assert line_of_error(caught.value) == str(Path(place).absolute().relative_to(Path.cwd()))
    assert described(caught.value) == f"KeyError: 'labels' ({place})"


def test_an_error_in_a_folder_that_was_removed_is_named_in_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "removed").mkdir()
    monkeypatch.chdir(tmp_path / "removed")
    (tmp_path / "removed").rmdir()
    with pytest.raises(KeyError) as caught:
        rows({})
    assert described(caught.value) == f"KeyError: 'labels' ({__file__}:{rows.__code__.co_firstlineno + 1})"


def test_lines_of_libraries_are_not_a_users() -> None:
    with pytest.raises(json.JSONDecodeError) as caught:
        json.loads("{")
    assert line_of_error(caught.value).startswith("tests/unit/strategies/test_user_errors.py:")


def test_a_file_that_python_cannot_read_is_named_with_its_line() -> None:
    with pytest.raises(SyntaxError) as caught:
        compile("x = 1\ndef (", "/home/u/model.py", "exec")
    assert described(caught.value) == "SyntaxError: invalid syntax (/home/u/model.py:2)"


def test_an_error_without_words_says_so() -> None:
    assert described(ValueError()) == "ValueError: no message"
