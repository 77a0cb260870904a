"""Lines of the user's own code that made nodes of a trace."""

import importlib.util
from pathlib import Path
from typing import Final

import tensorflow as tf

import strategies

_NOT_THE_USERS: Final = ("tensorflow", "keras", strategies.__name__)


def line_of(graph: tf.Graph, node: str | None) -> str:
    """`file.py:12` of the innermost frame that is the user's; empty where there is none."""
    if node is None:
        return ""
    try:
        return line_of_operation(graph.get_operation_by_name(node))
    except (KeyError, ValueError):
        return ""  # capture itself has added it


def line_of_operation(op: tf.Operation) -> str:
    """`file.py:12` of the innermost frame that is the user's; empty where there is none."""
    folders = _folders()
    for frame in reversed(op.traceback):
        path = Path(frame.filename)
        if path.is_file() and not any(path.is_relative_to(folder) for folder in folders):
            return f"{path.name}:{frame.lineno}"
    return ""


def _folders() -> list[Path]:
    """Where code lies that no user wrote."""
    specs = (importlib.util.find_spec(name) for name in _NOT_THE_USERS)
    return [Path(place) for spec in specs if spec for place in spec.submodule_search_locations or ()]
