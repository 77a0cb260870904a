"""Functions of TensorFlow and Keras replaced for the duration of a trace."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import tensorflow as tf


@contextmanager
def replaced(
    owner: object,
    name: str,
    hook: Callable[[Callable[..., object]], Callable[..., object]],
    *,
    is_converted: bool = False,
) -> Iterator[None]:
    """An attribute replaced for the duration; one that `owner` inherits is inherited again afterwards.

    Args:
        hook: original function → the one in its place.
        is_converted: leave to autograph what the original calls; the hook must carry the original's name.
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
    """A class, and every subclass that has a method of its own: hooked in all of them, each call is met."""
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
