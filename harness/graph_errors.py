"""The reason, and the place, in what TensorFlow says of a graph that failed."""

import re
from pathlib import Path

from harness.errors import first_line

_NODE = re.compile(r"\[\[(?:\{\{function_node [^}]*\}\})?\{+node ([^}]+)\}+")
_FRAME = re.compile(r'\s*File "([^"]+)", line (\d+), in ')
_ROOT = re.compile(r"\s*\(\d+\)\s+[A-Z_]+:\s+")
# What stands before the reason: a heading, another task's name, the stack of a node's definition.
_HEADING = re.compile(
    r"Graph execution error:|From /job:\S+:|Detected at node .*|Node: .*|\d+ root error\(s\) found\.|"
    r"Stack trace for op definition:.*|<stack traces unavailable>"
)
_OURS = Path(__file__).parent.parent


def graph_error(message: str) -> str:
    """What went wrong in one line, with the line of the user's file where it is known, else the node.

    Args:
        message: TensorFlow's, or any other error's, of which it is the first line.
    """
    lines = message.strip().splitlines()
    reasons = [line for line in lines if line.strip() and not _is_before_reason(line)]
    reason = first_line(_ROOT.sub("", reasons[0])) if reasons else first_line(message)
    frames = [match for line in lines if (match := _FRAME.match(line)) and _is_users(Path(match[1]))]
    if frames:
        return f"{reason}, at {frames[-1][1]}:{frames[-1][2]}"
    node = _NODE.search(message)
    return reason if node is None or node[1] in reason else f"{reason}, at node {node[1]}"


def _is_before_reason(line: str) -> bool:
    return bool(_HEADING.fullmatch(line.strip())) or bool(_FRAME.match(line))


def _is_users(file: Path) -> bool:
    return "site-packages" not in file.parts and not file.is_relative_to(_OURS) and file.is_absolute()
