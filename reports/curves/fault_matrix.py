"""Rules against faults: the result of each strategy in every scenario, and the front of those that pay."""

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
    """Names than which no other is at least as good in both figures and better in one.

    Args:
        points: name → two figures, more is better in each.
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
    """A matrix for each metric of each workload and shape that was run in scenarios with faults."""
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
    """True if a comparison has strategies that faults concern: not only controls and one device alone."""
    return any(row.class_ != "control" and not is_single(row) for row in comparison.rows)


def _matrix(members: Sequence[Comparison], metric: str, shape: str) -> FaultMatrix:
    """One metric.

    Args:
        shape: what the scenarios have in common, in words.
    """
    less = less_is_better(metric)
    clean = next((member for member in members if not member.faults), None)
    rows = {member.scenario: {row.strategy: row for row in member.rows} for member in members}
    names = dict.fromkeys(row.strategy for member in members for row in member.rows)
    lines = []
    for name in names:
        cells = tuple(
            _cell(rows[member.scenario].get(name), metric, has_faults=bool(member.faults))
            for member in members
        )
        if all(cell is None for cell in cells):
            continue
        usual = None if clean is None else rows[clean.scenario].get(name)
        counting = [
            (bool(each.faults), _score(cell, less=less))
            for cell, each in zip(cells, members, strict=True)
            if cell is not None and _counts(cell)
        ]
        scores = [score for _, score in counting] if any(faulty for faulty, _ in counting) else []
        lines.append(
            FaultLine(
                strategy=name,
                cells=cells,
                relative_rate=_relative(usual),
                relative_note="" if usual is None or usual.is_baseline else interval_of(usual.ratio),
                worst=(max if less else min)(scores, default=None),
                payload_bytes=None
                if usual is None or usual.payload_bytes is None
                else usual.payload_bytes.value,
            )
        )
    front = set(_front(lines, less=less))
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


def _cell(row: Row | None, metric: str, *, has_faults: bool) -> FaultCell | None:
    if row is None:
        return None
    # A sum of gradients is a rule for none.
    alone = row.mark.kind == "reference"
    void = has_faults and not alone and (row.rule is None or row.rule.n_faulty > row.rule.f)
    mean = row.metrics.get(metric)
    n_diverged = sum(len(problem.repeats) for problem in row.problems if problem.type in DIVERGED_KINDS)
    if n_diverged:
        # Whoever trains once may have one of these; a mean of the others would hide them.
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
    """True if a model should have little of a metric, judged by its name."""
    return metric.lower().replace("-", "_").split("_")[-1] in _LESS_IS_BETTER


def _relative(row: Row | None) -> float | None:
    if row is None or row.rate is None:
        return None
    return 1.0 if row.is_baseline else row.ratio.value if row.ratio else None


def _front(lines: Iterable[FaultLine], *, less: bool) -> Iterable[str]:
    """Strategies than which no other is both at least as fast and at least as good at worst.

    What goes to pieces is on no front, however fast.
    """
    points: Mapping[str, tuple[float, float]] = {
        line.strategy: (line.relative_rate, -line.worst if less else line.worst)
        for line in lines
        if line.relative_rate is not None and line.worst is not None and math.isfinite(line.worst)
    }
    yield from undominated(points)
