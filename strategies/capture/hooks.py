"""Replaced attributes of TensorFlow and Keras, and source lines of the nodes of a trace."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import tensorflow as tf

from strategies.user_errors import users_line


@contextmanager
def replaced(
    owner: object,
    name: str,
    hook: Callable[[Callable[..., object]], Callable[..., object]],
    *,
    is_converted: bool = False,
) -> Iterator[None]:
    """Replace an attribute for the duration; an inherited one is inherited again afterwards.

    Args:
        hook: original function → its replacement.
        is_converted: let autograph convert the original; the hook must carry the original's name.
    """
    original = getattr(owner, name)
    own = name in vars(owner)
    hooked = hook(original)
    setattr(owner, name, hooked if is_converted else tf.autograph.experimental.do_not_convert(hooked))
    try:
        yield
    finally:
        if own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)


def overriding_classes(base: type, method: str) -> Iterator[type]:
    """Yield a class and every subclass that overrides the method."""
    yield base
    waiting: list[type] = list(base.__subclasses__())
    seen: set[type] = set()
    while waiting:
        each = waiting.pop()
        if each not in seen:
            seen.add(each)
            waiting += each.__subclasses__()
            if method in vars(each):
                yield each


def lines_of(graph: tf.Graph) -> dict[str, str]:
    """Node → `file.py:12` of the user's line that made it; nodes of a function are `function/node`."""
    # TensorFlow has no public way from a graph to those of its functions.
    functions = {name: getattr(f, "graph", None) for name, f in graph._functions.items()}  # noqa: SLF001
    named = [("", graph), *((f"{name}/", body) for name, body in functions.items() if body is not None)]
    lines = ((within + op.name, line_of_operation(op)) for within, g in named for op in g.get_operations())
    return {name: line for name, line in lines if line}


def line_of_operation(op: tf.Operation) -> str:
    """`file.py:12` of the innermost frame in the user's code, or an empty string."""
    return users_line((frame.filename, frame.lineno) for frame in reversed(op.traceback or ()))
