"""Axes along which variables can be cut, as their updates follow the parts."""

from collections.abc import Sequence

from strategies.ir.partitioning.propagate import Spread, spread
from strategies.ir.train_graph import TrainGraph


def spread_along(step: TrainGraph) -> tuple[Spread, ...]:
    """For each axis, from 0, what becomes of updates if all trainables that have it are cut along it."""
    shapes = _shapes(step)
    rank = max(map(len, shapes.values()), default=0)
    return tuple(
        spread(step, {name: axis for name, shape in shapes.items() if axis < len(shape)})
        for axis in range(rank)
    )


def axes_to_cut(step: TrainGraph, found: Sequence[Spread]) -> dict[str, tuple[int, ...]]:
    """Trainable that a gradient reaches → the axes along which it can be cut, none if it stays whole.

    Args:
        found: the same step's, along each axis.
    """
    shapes = _shapes(step)
    return {
        b.variable: tuple(
            axis
            for axis, length in enumerate(shapes.get(b.variable, ()))
            if length > 1 and b.variable not in found[axis].refused
        )
        for b in step.gradients()
    }


def _shapes(step: TrainGraph) -> dict[str, tuple[int, ...]]:
    """Shapes of the trainables that a gradient reaches, as far as they are known."""
    crossing = {b.variable for b in step.gradients()}
    dims = {v.name: v.shape.dims for v in step.variables if v.name in crossing}
    return {name: shape for name, shape in dims.items() if shape is not None and -1 not in shape}
