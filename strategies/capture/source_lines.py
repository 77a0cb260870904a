"""Lines of the user's own code that made nodes of a trace."""

import tensorflow as tf

from strategies.user_errors import users_line


def lines_of(graph: tf.Graph) -> dict[str, str]:
    """Node → `file.py:12` of all that a line of the user's made; those of a function are `function/node`."""
    # TensorFlow has no public way from a graph to those of its functions.
    functions = {name: getattr(f, "graph", None) for name, f in graph._functions.items()}  # noqa: SLF001
    named = [("", graph), *((f"{name}/", body) for name, body in functions.items() if body is not None)]
    lines = ((within + op.name, line_of_operation(op)) for within, g in named for op in g.get_operations())
    return {name: line for name, line in lines if line}


def line_of_operation(op: tf.Operation) -> str:
    """`file.py:12` of the innermost frame that is the user's; empty where there is none."""
    return users_line((frame.filename, frame.lineno) for frame in reversed(op.traceback or ()))
