"""One-line errors for users' code: the reason, and the line of the user's file that raised it."""

import functools
import re
import sysconfig
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, TypeAlias

Frame: TypeAlias = tuple[str, int]
"""File and line number."""
_OURS: Final = tuple(Path(__file__).parents[1] / name for name in ("harness", "strategies", "workloads"))
_LIBRARY: Final = Path(sysconfig.get_path("stdlib"))
_PACKAGES: Final = {"site-packages", "dist-packages"}
"""Folders of installed packages, on this machine or on a worker."""
_GENERATED: Final = "__autograph_generated_file"
_LONGEST_REASON: Final = 300
_OF_TRACED_TENSORS: Final = re.compile(r"SymbolicTensor|symbolic `?tf\.Tensor|Symbolic Tensor")
_VALUES_WAY_OUT: Final = (
    "a step's tensors have no values while it is traced: use TensorFlow's operations in place of .numpy(), "
    "float() and NumPy's, and tf.print to look at them"
)
_NODE: Final = re.compile(r"\[\[(?:\{\{function_node ([^}]*)\}\})?\{+node ([^}]+)\}+")
_FRAME: Final = re.compile(r'\s*File "([^"]+)", line (\d+), in ')
# Text before the reason: a heading, another task's name, the stack of a node's definition.
_HEADING: Final = re.compile(
    r"Graph execution error:|From /job:\S+:|Detected at node .*|Node: .*|\d+ root error\(s\) found\.|"
    r"Stack trace for op definition:.*|<stack traces unavailable>"
)
# Text on the same line: numbers of roots, and the names of TensorFlow's own functions and datasets.
_BEFORE: Final = re.compile(
    r"(?:\s*\(\d+\)\s+[A-Z_]+:\s+|\{\{.*?\}\}\s*|"
    r"Error in user-defined function passed to \S+ transformation with iterator: \S+: )+"
)
_AFTER: Final = re.compile(r"\s*(?:\[Op:\w+\])?(?: name:.*)?$")
_TERMINAL_STYLE: Final = re.compile("\x1b\\[[0-9;]*m")
SHOWS_TRACEBACK: Final = "--debug shows the traceback"


def without_option(message: str) -> str:
    """Message for a record, whose readers cannot repeat the command with `--debug`."""
    return message.replace(f"; {SHOWS_TRACEBACK}", "")


def reason_of(error: BaseException) -> str:
    """Type and message of an error, on one short line."""
    # Autograph puts a traceback into the message and may change the type; it keeps both here.
    message = getattr(getattr(error, "ag_error_metadata", None), "cause_message", None)
    if message is None:
        message = f"{type(error).__name__}: {error.msg if isinstance(error, SyntaxError) else error}"
    reason = _shortened(_TERMINAL_STYLE.sub("", message))
    return reason if not reason.endswith(":") else f"{reason} no message"


def _shortened(text: str) -> str:
    joined = " ".join(text.split())
    return joined if len(joined) <= _LONGEST_REASON else f"{joined[:_LONGEST_REASON]}…"


def quote(value: object) -> str:
    """A value and its type, in one line that is not too long."""
    return f"{type(value).__name__} {_shortened(repr(value))}"


Rules: TypeAlias = Mapping[str, tuple[Callable[[object], bool], str]]
"""Attribute of a user's object → test of its value, and the rule in words."""


def broken_attribute(candidate: object, rules: Rules, where: str) -> tuple[str, str] | None:
    """First attribute of a user's object that is missing or breaks its rule, with the error line.

    Args:
        where: beginning of the line.
    """
    kind = type(candidate).__name__
    for attribute, (holds, rule) in rules.items():
        try:
            value = getattr(candidate, attribute)
        except AttributeError:
            return attribute, f"{where} returned a {kind} without {attribute}; give it {attribute}, {rule}"
        if not holds(value):
            message = f"{where} returned a {kind} whose {attribute} must be {rule}, got {quote(value)}"
            return attribute, message
    return None


def described(error: BaseException) -> str:
    """Reason and line of an error in traced code, and advice if a tensor had no value there."""
    reason, line = reason_of(error), line_of_error(error)
    place = f"{reason} ({line})" if line else reason
    return f"{place}; {_VALUES_WAY_OUT}" if _OF_TRACED_TENSORS.search(reason) else place


def graph_error(message: str) -> str:
    """Message of a graph's error with the line of the user's file, or the node if the line is unknown.

    Args:
        message: message of TensorFlow or of another error; the first line is used.
    """
    lines = message.strip().splitlines()
    reasons = [line.strip() for line in lines if line.strip() and not _is_before_reason(line)]
    first = _AFTER.sub("", _BEFORE.sub("", next(iter([*reasons, *lines]), "")))
    reason = first[:_LONGEST_REASON] or "no message"
    stack = [(match[1], int(match[2])) for line in reversed(lines) if (match := _FRAME.match(line))]
    if line := users_line(stack):
        return f"{reason}, at {line}"
    _, node = failed_node(message)
    return reason if not node or node in reason else f"{reason}, at node {node}"


def failed_node(message: str) -> tuple[str, str]:
    """Function and node that an error message names, empty if it names none."""
    match = _NODE.search(message)
    return ("", "") if match is None else (match[1] or "", match[2])


def _is_before_reason(line: str) -> bool:
    return bool(_HEADING.fullmatch(line.strip())) or bool(_FRAME.match(line))


def users_line(frames: Iterable[Frame]) -> str:
    """`file.py:12` of the first frame in a user's file, empty if there is none.

    Args:
        frames: stack frames, innermost first.
    """
    return next((f"{_short_path(file)}:{line}" for file, line in frames if _is_users(file)), "")


def line_of_error(error: BaseException) -> str:
    """`file.py:12` of the innermost line of a user's file in a traceback, empty if there is none."""
    return users_line(_frames(error))


def _frames(error: BaseException) -> Iterator[Frame]:
    if isinstance(error, SyntaxError) and error.filename:
        yield error.filename, error.lineno or 1
    # Autograph runs a translation of the user's functions, and stores the original lines here.
    translated = getattr(getattr(error, "ag_error_metadata", None), "translated_stack", ())
    yield from ((frame.filename, frame.lineno) for frame in translated)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        yield frame.filename, frame.lineno or 1


@functools.cache
def _is_users(file: str) -> bool:
    path = Path(file)
    if path.name.startswith(_GENERATED) or not path.is_absolute() or not _PACKAGES.isdisjoint(path.parts):
        return False
    return not any(path.is_relative_to(folder) for folder in (*_OURS, _LIBRARY))


def _short_path(file: str) -> str:
    try:
        return str(Path(file).relative_to(Path.cwd()))
    except (ValueError, FileNotFoundError):
        return file  # it is elsewhere, or the current folder was removed
