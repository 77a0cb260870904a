"""Cases of a dry run, in words: a line each."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.experiment.cases import Case


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedTable:
    """Headings, a row for each case, and a line that says how much that is in all."""

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    total: str


def planned_table(
    cases: Sequence[Case],
    *,
    n_repeats: int,
    until_ci: float | None = None,
    skipped: Collection[str] = (),
) -> PlannedTable:
    """Say what each case runs; of its site and links what is not the same for all cases, and how it computes
    where any is not as its author wrote it.

    Args:
        cases: in matrix order, at least one.
        n_repeats: of each.
        until_ci: how closely ratios are to be known before there are repeats enough; None where these are.
        skipped: names of those that will not run.
    """
    more = "" if until_ci is None else f", and more until ratios are known within ±{100 * until_ci:g} %"
    left_out = f", of which {len(skipped)} will be skipped" if skipped else ""
    swept = [item for item in _IF_SWEPT if len({item[1](case) for case in cases}) > 1]
    unusual = [item for item, usual in _IF_UNUSUAL if {item[1](case) for case in cases} != {usual}]
    columns = [*_ALWAYS, *swept, *unusual]
    return PlannedTable(
        columns=(*(name for name, _ in columns), "repeats"),
        rows=tuple(
            (*(show(case) for _, show in columns), "skipped" if case.id in skipped else str(n_repeats))
            for case in cases
        ),
        total=f"{_counted(len(cases), 'case')}{left_out}, {_counted(n_repeats, 'repeat')} of each: "
        f"{(len(cases) - len(skipped)) * n_repeats} to run{more}",
    )


def _counted(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _memory(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else f"{size_bytes / 2**30:g} GiB"


def _links(case: Case) -> str:
    rates = ["no limit" if limit is None else f"{limit.rate_mbit:g} Mbit/s" for limit in case.shape.links]
    burst = "" if case.shape.burst_kb is None else f", burst {case.shape.burst_kb} kB"
    return (rates[0] if len(set(rates)) == 1 else ", ".join(rates)) + burst


_ALWAYS: tuple[tuple[str, Callable[[Case], str]], ...] = (
    ("workload", lambda case: str(case.workload)),
    ("strategy", lambda case: str(case.strategy)),
    ("workers x replicas", lambda case: f"{case.shape.workers} x {case.shape.replicas_per_worker}"),
)
_IF_SWEPT: tuple[tuple[str, Callable[[Case], str]], ...] = (
    ("provider", lambda case: case.shape.provider),
    ("device", lambda case: case.shape.device),
    ("cores per worker", lambda case: str(case.shape.cores_per_worker)),
    ("memory per worker", lambda case: _memory(case.shape.memory_bytes)),
    ("links", _links),
    ("image", lambda case: case.shape.image or "-"),
)
_IF_UNUSUAL: tuple[tuple[tuple[str, Callable[[Case], str]], str], ...] = (
    (("precision", lambda case: case.computation.precision), "float32"),
    (("XLA", lambda case: "yes" if case.computation.xla else "no"), "no"),
    (("TF32", lambda case: "off" if case.computation.tf32 is False else "-"), "-"),
    (("may share GPUs", lambda case: "yes" if case.shape.share_gpus else "no"), "no"),
    (("faults", lambda case: case.scenario.name or "-"), "-"),
)
"""Column → what is not worth one where all cases have it."""
