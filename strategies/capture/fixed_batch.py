"""Layers that take batches of one size only: stateful ones, and models whose inputs name it."""

import functools
from collections.abc import Callable, Sequence

import keras
import tensorflow as tf

from strategies.errors import CaptureError


class FixedBatchError(CaptureError):
    """A layer takes batches of one size only, and a trace gave it others.

    Attributes:
        n_examples: that size.
    """

    def __init__(self, layer: str, n_examples: int) -> None:
        super().__init__(f"layer {layer!r} takes batches of {n_examples} examples only")
        self.layer = layer
        self.n_examples = n_examples

    def of_shards(self, shard: int | None) -> CaptureError:
        """What it says to shards of another size, None where they differ."""
        got = shard or "different sizes"
        return CaptureError(
            f"train step: layer {self.layer!r} takes batches of {self.n_examples} examples only, got shards "
            f"of {got}; choose a batch_size of {self.n_examples} for each replica, as "
            "measure.batch: per-replica does for all cases of a run, or build the model for any number, "
            "without batch_shape and stateful"
        )


def requiring_batch(
    call: Callable[..., object],
    *,
    n_examples: int | None,
    refuse: Callable[[CaptureError], object],
    carries: Callable[[Sequence[keras.Variable]], object],
) -> Callable[..., object]:
    """`Layer.__call__` that refuses a batch of another size than its layer takes.

    Args:
        n_examples: of the trace's batch, None for a free axis; then what has no known size is refused, too.
        refuse: raises.
        carries: hears of variables in which a layer keeps something of each example for the next step.
    """

    @functools.wraps(call)
    def hooked(layer: keras.layers.Layer, *args: object, **kw: object) -> object:
        for tensor, size in _required(layer, args[0] if args else kw.get("inputs")):
            given = tensor.shape[0] if tensor.shape.rank else size
            if given != size and (given is not None or n_examples is None):
                refuse(FixedBatchError(layer.path, size))
        result = call(layer, *args, **kw)
        if isinstance(layer, keras.layers.RNN) and layer.stateful:
            carries(keras.tree.flatten(layer.states))
        return result

    return hooked


def _required(layer: keras.layers.Layer, inputs: object) -> list[tuple[tf.Tensor, int]]:
    """Inputs of a call, and the batch size that each must have."""
    tensors = [each for each in keras.tree.flatten(inputs) if isinstance(each, tf.Tensor)]
    if isinstance(layer, keras.layers.RNN):
        states = keras.tree.flatten(layer.states) if layer.stateful else []
        return [(tensors[0], int(states[0].shape[0]))] if states and tensors else []
    expected = keras.tree.flatten(getattr(layer, "inputs", None)) if isinstance(layer, keras.Model) else []
    if len(expected) != len(tensors):
        return []
    return [
        (tensor, int(symbolic.shape[0]))
        for tensor, symbolic in zip(tensors, expected, strict=True)
        if symbolic is not None and len(symbolic.shape) and symbolic.shape[0] is not None
    ]
