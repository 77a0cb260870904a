"""Functions of TensorFlow and Keras replaced for the duration of a trace."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import tensorflow as tf


@contextmanager
def replaced(
    owner: object, name: str, hook: Callable[[Callable[..., object]], Callable[..., object]]
) -> Iterator[None]:
    """An attribute replaced for the duration; one that `owner` inherits is inherited again afterwards.

    Args:
        hook: original function → the one in its place.
    """
    original = getattr(owner, name)
    own = name in vars(owner)
    setattr(owner, name, tf.autograph.experimental.do_not_convert(hook(original)))
    try:
        yield
    finally:
        if own:
            setattr(owner, name, original)
        else:
            delattr(owner, name)
