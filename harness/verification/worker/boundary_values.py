"""Values at the boundaries of a step, fetched from a running session, and norms of its gradients."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import hypot

import numpy as np

from harness.verification.differences import widened
from harness.verification.reference import Gradient
from harness.verification.worker.rounding import Crossed, merged_rows
from harness.worker.session.session import WorkerSession
from harness.worker.variable_parts import Array
from strategies.ir.train_graph import Boundary, Contribution, TrainGraph
from strategies.ir.variable import Part


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientCrossing:
    """A gradient, or a part of one, in a rewritten step.

    Attributes:
        copy: rank of the replica whose copy of the variable it updates; None if all share one.
        part: part of the captured variable; None for the whole.
    """

    gradient: Gradient
    copy: int | None
    part: Part | None
    boundary: Boundary

    @property
    def tensors(self) -> list[str]:
        return [ref for ref in (self.boundary.values, self.boundary.indices) if ref is not None]


def crossings_of(step: TrainGraph) -> list[GradientCrossing]:
    """Gradients of captured variables in a step, rewritten or not."""
    parts = {v.name: v.part for v in step.variables if v.part is not None}
    n_before: dict[tuple[str, int | None], int] = {}
    crossings = []
    for b in step.gradients():
        part = parts.get(b.variable)
        place = n_before[b.variable, b.rank] = n_before.get((b.variable, b.rank), -1) + 1
        gradient = (b.variable if part is None else part.variable, place)
        crossings.append(GradientCrossing(gradient=gradient, copy=b.rank, part=part, boundary=b))
    return crossings


def fetched(
    session: WorkerSession,
    wanted: Sequence[tuple[Boundary, Contribution]],
    batch: Sequence[Array],
) -> list[Array]:
    """Values of contributions to boundaries, dense and in float64, from one run on a global batch."""
    refs = [r for _, c in wanted for r in (c.values, c.indices) if r is not None]
    values = iter(session.run(refs, fed(session, batch)))
    return [_dense(b, next(values), None if c.indices is None else next(values)) for b, c in wanted]


def passed_on(
    session: WorkerSession, step: TrainGraph, batch: Sequence[Array], boundaries: Sequence[Boundary]
) -> tuple[list[Array], float]:
    """Values that boundaries of a worker's step pass on to updates, while the worker runs the step.

    Returns:
        Values, and the contribution of the worker's shards to the global loss.
    """
    refs = [ref for b in boundaries for ref in (b.values, b.indices) if ref is not None]
    losses = [loss.tensor for loss in step.losses]
    values = iter(session.run([*refs, *losses], fed(session, batch), step.targets()))
    crossing = [_dense(b, next(values), None if b.indices is None else next(values)) for b in boundaries]
    return crossing, sum(loss.weight * float(value) for loss, value in zip(step.losses, values, strict=True))


def fed(session: WorkerSession, batch: Sequence[Array]) -> dict[str, Array]:
    """A worker's examples of a global batch, by input node."""
    program = session.program
    return {
        b.node: part[program.start : program.stop] for b, part in zip(program.step.batch, batch, strict=True)
    }


def _dense(b: Boundary, values: Array, indices: Array | None) -> Array:
    return widened(values) if indices is None else dense_rows(values, indices, b.shape.dims or ())


def dense_rows(rows: Array, ids: Array, dims: Sequence[int]) -> Array:
    """Dense form of a sparse gradient, in float64; rows with the same id are added."""
    wide = widened(rows)
    dense = np.zeros(dims, wide.dtype)
    np.add.at(dense, ids, wide)
    return dense


def combined_norms(step: TrainGraph, combined: Mapping[str, Crossed]) -> dict[Gradient, list[float]]:
    """Norms of values that all shards of a batch send across the boundaries of a captured step."""
    return {
        crossing.gradient: [norm_of(*combined[crossing.boundary.values])] for crossing in crossings_of(step)
    }


def passed_norms(
    step: TrainGraph, crossings: Sequence[Sequence[GradientCrossing]], values: Sequence[Sequence[Array]]
) -> dict[Gradient, list[float]]:
    """Norms of values passed on to updates: of each whole copy, or of the first copies of all parts.

    Args:
        step: the captured step.
        crossings: gradients by task. values: values of their tensors, by task.
    """
    norms: dict[Gradient, list[float]] = {}
    parts: dict[Gradient, dict[int, tuple[Part, float]]] = {}
    for crossing, norm in _each_norm(crossings, values):
        if crossing.part is None:
            norms.setdefault(crossing.gradient, []).append(norm)
        else:
            parts.setdefault(crossing.gradient, {}).setdefault(crossing.part.start, (crossing.part, norm))
    lengths = {crossing.gradient: crossing.boundary.shape.dims or () for crossing in crossings_of(step)}
    for gradient, by_start in parts.items():
        # Workers may have other ranges: one follows the other, whoever has them.
        own: list[float] = []
        stop = 0
        while stop in by_start:
            part, norm = by_start[stop]
            own.append(norm)
            stop = part.stop
        # A part that no worker passes on would be missing in the norm.
        if stop == lengths[gradient][next(iter(by_start.values()))[0].axis]:
            norms.setdefault(gradient, []).append(hypot(*own))
    return norms


def _each_norm(
    crossings: Sequence[Sequence[GradientCrossing]], values: Sequence[Sequence[Array]]
) -> Iterator[tuple[GradientCrossing, float]]:
    for of_task, fetched in zip(crossings, values, strict=True):
        left = iter(fetched)
        for crossing in of_task:
            rows, *ids = (next(left) for _ in crossing.tensors)
            yield crossing, norm_of(rows, *ids)


def norm_of(values: Array, ids: Array | None = None) -> float:
    """L2 norm of a gradient, dense or sparse."""
    wide, _ = merged_rows(widened(values), ids)
    return float(np.linalg.norm(wide))
