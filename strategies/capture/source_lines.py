"""Lines of the user's own code that made nodes of a trace."""

import tensorflow as tf

from strategies.user_errors import users_line


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
    return users_line((frame.filename, frame.lineno) for frame in reversed(op.traceback))
