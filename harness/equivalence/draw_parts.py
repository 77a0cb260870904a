"""A shard's part of the random numbers that were drawn for the whole batch; no TensorFlow."""

from collections.abc import Sequence

from harness.equivalence.yardstick import Array
from strategies.topology import Shard


def part_of_draw(whole: Array, shape: Sequence[int], shard: Shard, n_examples: int) -> Array | None:
    """What a shard takes of a draw so that its examples get what they get in the whole batch.

    Args:
        shape: of what the shard itself would draw.
        n_examples: of the whole batch.
    Returns:
        all of it where the shard draws as much; else its range of the one axis whose length grows with the
        number of examples; None if there is no such axis.
    """
    if whole.shape == tuple(shape):
        return whole
    if whole.ndim != len(shape):
        return None
    axes = [axis for axis, (n, own) in enumerate(zip(whole.shape, shape, strict=True)) if n != own]
    per_example, rest = divmod(whole.shape[axes[0]], n_examples)
    if len(axes) > 1 or rest or shape[axes[0]] != per_example * shard.examples:
        return None
    span = slice(per_example * shard.start, per_example * shard.stop)
    return whole[(slice(None),) * axes[0] + (span,)]
