"""Fault matrix: a metric by strategy and fault scenario, and the Pareto front of speed and worst case."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from harness.records.record import DIVERGED_KINDS, KILLED_BY_FAULT
from reports.curves.sizes_and_links import Source, is_single
from reports.quantities import interval_of
from reports.rows.report import Comparison, FaultCell, FaultLine, FaultMatrix
from reports.rows.row import Row
from reports.shapes import shape_text


def undominated(points: Mapping[str, tuple[float, float]]) -> tuple[str, ...]:
    """Pareto front: names for which no other is at least as good in both figures and better in one.

    Args:
        points: name → two figures; more is better in both.
    """
    return tuple(
        name
        for name, (first, second) in points.items()
        if not any(
            one >= first and two >= second and (one, two) != (first, second) for one, two in points.values()
        )
    )


DIVERGED, _DIED = "diverged", "worker died"
_LESS_IS_BETTER = ("loss", "error", "perplexity")


def fault_matrices(sources: Sequence[Source]) -> tuple[FaultMatrix, ...]:
    """A matrix per metric of each workload and shape with fault scenarios."""
    alike: dict[tuple[object, ...], list[Source]] = {}
    for source in sources:
        alike.setdefault((source.run_number, replace(source.shape, scenario="")), []).append(source)
    matrices = []
    for together in alike.values():
        shape = shape_text(replace(together[0].shape, scenario=""))
        members = [source.comparison for source in together if _is_scenario(source.comparison)]
        metrics = dict.fromkeys(name for member in members for row in member.rows for name in row.metrics)
        if any(member.faults for member in members):
            matrices += [_matrix(members, metric, shape) for metric in metrics]
    return tuple(matrices)


def _is_scenario(comparison: Comparison) -> bool:
    """True if a comparison has strategies other than controls and `single`, which faults do not affect."""
    return any(row.class_ != "control" and not is_single(row) for row in comparison.rows)


def _matrix(members: Sequence[Comparison], metric: str, shape: str) -> FaultMatrix:
    """Matrix of one metric.

    Args:
        members: comparisons that differ in their fault scenario only.
        shape: their common shape, in words.
    """
    less = less_is_better(metric)
    clean = next((member for member in members if not member.faults), None)
    names = dict.fromkeys(row.strategy for member in members for row in member.rows)
    all_lines = [_line(name, members, clean, metric, less=less) for name in names]
    lines = [line for line in all_lines if any(cell is not None for cell in line.cells)]
    front = _front(lines, less=less)
    return FaultMatrix(
        run=members[0].run,
        workload=members[0].workload,
        shape=shape,
        metric=metric,
        less_is_better=less,
        baseline=None if clean is None else clean.baseline,
        scenarios=tuple((member.scenario or "no faults", member.faults) for member in members),
        lines=tuple(replace(line, on_front=line.strategy in front) for line in lines),
    )


def _line(
    name: str, members: Sequence[Comparison], clean: Comparison | None, metric: str, *, less: bool
) -> FaultLine:
    """Results of one strategy; throughput and bytes are those of `clean`, the scenario without faults."""
    rows = [next((row for row in member.rows if row.strategy == name), None) for member in members]
    cells = tuple(
        _cell(row, metric, has_faults=bool(member.faults)) for row, member in zip(rows, members, strict=True)
    )
    usual = next((row for row, member in zip(rows, members, strict=True) if member is clean), None)
    scores = {
        member.scenario: _score(cell, less=less)
        for cell, member in zip(cells, members, strict=True)
        if cell is not None and _counts(cell)
    }
    has_faults = any(member.faults for member in members if member.scenario in scores)
    return FaultLine(
        strategy=name,
        cells=cells,
        relative_rate=_relative(usual),
        relative_note="" if usual is None or usual.is_baseline else interval_of(usual.ratio),
        worst=(max if less else min)(scores.values(), default=None) if has_faults else None,
        payload_bytes=usual.payload_bytes.value if usual and usual.payload_bytes else None,
    )


def _cell(row: Row | None, metric: str, *, has_faults: bool) -> FaultCell | None:
    if row is None:
        return None
    # A sum of gradients tolerates no faulty worker.
    is_single_device = row.mark.kind == "reference"
    void = has_faults and not is_single_device and (row.rule is None or row.rule.n_faulty > row.rule.f)
    mean = row.metrics.get(metric)
    n_diverged = sum(len(problem.repeats) for problem in row.problems if problem.type in DIVERGED_KINDS)
    if n_diverged:
        # A mean over the other repeats would hide the diverged ones.
        note = f"{n_diverged} of {row.n_repeats} repeats"
        return FaultCell(value=None, outcome=DIVERGED, step=None, void=void, note=note)
    if mean is not None:
        return FaultCell(value=mean, outcome="", step=row.metric_step, void=void)
    died = any(problem.type == KILLED_BY_FAULT for problem in row.problems)
    outcome = _DIED if died else row.status if row.status != "ok" else "no figure"
    return FaultCell(value=None, outcome=outcome, step=None, void=void)


def _counts(cell: FaultCell) -> bool:
    """True if a result counts: it has a figure within the bound, or the training diverged."""
    return not cell.void and (cell.value is not None or cell.outcome == DIVERGED)


def _score(cell: FaultCell, *, less: bool) -> float:
    if cell.value is None:
        return math.inf if less else -math.inf
    return cell.value.value


def less_is_better(metric: str) -> bool:
    """True if lower values of a metric are better, by its name."""
    return metric.lower().replace("-", "_").split("_")[-1] in _LESS_IS_BETTER


def _relative(row: Row | None) -> float | None:
    if row is None or row.rate is None:
        return None
    return 1.0 if row.is_baseline else row.ratio.value if row.ratio else None


def _front(lines: Iterable[FaultLine], *, less: bool) -> Sequence[str]:
    """Pareto front of throughput and worst metric; strategies that diverged are excluded."""
    points: Mapping[str, tuple[float, float]] = {
        line.strategy: (line.relative_rate, -line.worst if less else line.worst)
        for line in lines
        if line.relative_rate is not None and line.worst is not None and math.isfinite(line.worst)
    }
    return undominated(points)
