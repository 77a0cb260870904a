"""Values at the boundaries of a rewritten step, fetched from a session that makes it."""

from collections.abc import Sequence

import numpy as np

from harness.equivalence.yardstick import Array, widened
from harness.worker.session.session import WorkerSession
from strategies.ir.boundary import Boundary, Contribution
from strategies.ir.train_graph import TrainGraph


def fetched(
    session: WorkerSession,
    wanted: Sequence[tuple[Boundary, Contribution]],
    batch: Sequence[Array],
) -> list[Array]:
    """The values of contributions to boundaries, dense and in float64, in one run on a global batch."""
    refs = [r for _, c in wanted for r in (c.values, c.indices) if r is not None]
    values = iter(session.run(refs, fed(session, batch)))
    return [_dense(b, next(values), None if c.indices is None else next(values)) for b, c in wanted]


def passed_on(
    session: WorkerSession, step: TrainGraph, batch: Sequence[Array], boundaries: Sequence[Boundary]
) -> tuple[list[Array], float]:
    """What boundaries of a worker's step pass on to updates, while the worker makes the step.

    Returns:
        the values, and what the worker's shards add to the global loss.
    """
    refs = [ref for b in boundaries for ref in (b.values, b.indices) if ref is not None]
    losses = [loss.tensor for loss in step.losses]
    values = iter(session.run([*refs, *losses], fed(session, batch), step.targets()))
    crossing = [_dense(b, next(values), None if b.indices is None else next(values)) for b in boundaries]
    return crossing, sum(loss.weight * float(value) for loss, value in zip(step.losses, values, strict=True))


def fed(session: WorkerSession, batch: Sequence[Array]) -> dict[str, Array]:
    """A worker's examples of a global batch, by the node that takes them."""
    program = session.program
    return {b.node: part[program.start : program.stop] for b, part in zip(program.batch, batch, strict=True)}


def _dense(b: Boundary, values: Array, indices: Array | None) -> Array:
    return widened(values) if indices is None else dense_rows(values, indices, b.shape.dims or ())


def dense_rows(rows: Array, ids: Array, dims: Sequence[int]) -> Array:
    """The dense form of a sparse gradient, in float64; rows of the same id add up."""
    wide = widened(rows)
    dense = np.zeros(dims, wide.dtype)
    np.add.at(dense, ids, wide)
    return dense
