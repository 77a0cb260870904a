"""Results of the cases of one run, matched with the same cases of another run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.records.comparison import PairedRatios, paired_ratios
from harness.records.record import Record
from reports.case_row import is_usable, rates_of
from reports.changes import phrases
from reports.compare import baseline_of
from reports.load import Run
from reports.quantities import byte_count, times
from reports.rows.row import followed_figures
from reports.shapes import BASELINE, ComparedShape, shape_of, shapes_of

Identity = tuple[ComparedShape, str]
"""Shape and full strategy name: the same for one case in two runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseResult:
    """All repeats of one case of a run.

    Attributes:
        usable: repeats with a throughput.
        baseline: strategy that `ratios` refer to; None for the baseline itself, or without one.
        is_baseline: true if ratios of other cases refer to this one.
        ratios: ratio to the baseline of each repeat in which both took turns.
    """

    shape: ComparedShape
    strategy: str
    records: tuple[Record, ...]
    usable: tuple[Record, ...]
    baseline: str | None
    is_baseline: bool
    ratios: PairedRatios

    @property
    def rates(self) -> list[float]:
        """Throughput of each usable repeat, at its median step time."""
        return rates_of(self.usable)


def case_results(run: Run) -> Mapping[Identity, CaseResult]:
    """All cases of a run, each once, in the order of the report."""
    results: dict[str, tuple[Identity, CaseResult]] = {}
    for shape, cases in shapes_of(run).items():
        usable = {name: tuple(filter(is_usable, records)) for name, records in cases.items()}
        rates = {name: rates_of(records) for name, records in usable.items()}
        reference, _ = baseline_of(run, cases, rates)
        for name, records in cases.items():
            # `single` appears in several shapes.
            if records[0].case in results:
                continue
            baseline = None if reference == name else reference
            result = CaseResult(
                shape=shape,
                strategy=name,
                records=tuple(records),
                usable=usable[name],
                baseline=baseline,
                is_baseline=reference == name and len(cases) > 1,
                ratios=PairedRatios(logs=())
                if baseline is None
                else paired_ratios(usable[name], usable[baseline]),
            )
            results[records[0].case] = (_own_shape(shape, records), name), result
    return dict(results.values())


def _own_shape(shape: ComparedShape, records: Sequence[Record]) -> ComparedShape:
    """Shape by which to match a case: for `single` its own, not that of the strategies beside it."""
    if records[0].strategy != BASELINE:
        return shape
    planned = next((record for record in records if record.batch_size is not None), None)
    return shape if planned is None else replace(shape_of(planned), image=shape.image)


CasePair = tuple[CaseResult | None, CaseResult | None]
"""A case of the earlier and of the later run; None if that run does not have it."""


def matched_cases(
    earlier: Mapping[Identity, CaseResult], later: Mapping[Identity, CaseResult]
) -> Iterator[CasePair]:
    """Pair each case with the same case of the other run.

    A case without an exact match is paired with the only one that differs in batch or links alone, else with
    the only one that differs in batch, links, cores, memory or image.
    """
    left = {identity: case for identity, case in earlier.items() if identity not in later}
    similar = [_by_shape(left, ComparedShape.without_batch_and_links), _by_shape(left, ComparedShape.roughly)]
    for identity, case in later.items():
        before = earlier.get(identity)
        if before is None:
            shape, strategy = identity
            for by_shape, similar_shape in zip(
                similar, (shape.without_batch_and_links(), shape.roughly()), strict=True
            ):
                candidates = [item for item in by_shape.get((similar_shape, strategy), ()) if item in left]
                if candidates:
                    before = left.pop(candidates[0]) if len(candidates) == 1 else None
                    break
        yield before, case
    for case in left.values():
        yield case, None


def _by_shape(
    cases: Iterable[Identity], simplified: Callable[[ComparedShape], ComparedShape]
) -> dict[Identity, list[Identity]]:
    by_shape: dict[Identity, list[Identity]] = {}
    for shape, strategy in cases:
        by_shape.setdefault((simplified(shape), strategy), []).append((shape, strategy))
    return by_shape


LAYERS = followed_figures()
"""Byte counts that are compared between runs."""
PAYLOAD = next(layer for layer in LAYERS if layer.metric == "payload_bytes")


def more_bytes(before: Sequence[Record], after: Sequence[Record]) -> Iterator[str]:
    """Layers at which every later repeat sends more than every earlier one, as `payload 2.00×`."""
    for layer, figure in LAYERS.items():
        old, new = figure.values(before), figure.values(after)
        if old and new and min(new) > max(old) * math.exp(layer.least_effect):
            factor = (
                times(min(new) / max(old))
                if max(old)
                else phrases.FROM_NONE.format(bytes=byte_count(min(new)))
            )
            yield f"{layer.name} {factor}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadChange:
    """A workload that differs between two runs, or may differ.

    Attributes:
        differs: facts that differ.
        unknown: facts that only one run recorded; older versions recorded fewer.
    """

    workload: str
    differs: tuple[str, ...]
    unknown: tuple[str, ...]


def workload_changes(pairs: Iterable[CasePair]) -> Iterator[WorkloadChange]:
    """Workloads that differ between two runs, or may differ because a run did not record their facts."""
    differs: dict[str, dict[str, None]] = {}
    unknown: dict[str, dict[str, None]] = {}
    for before, after in pairs:
        if before is None or after is None or not (before.usable and after.usable):
            continue
        workload = after.shape.workload
        old, new = _workload_facts(before), _workload_facts(after)
        for fact in old:
            if old[fact] and new[fact] and old[fact] != new[fact]:
                differs.setdefault(workload, {})[fact] = None
            elif bool(old[fact]) != bool(new[fact]):
                unknown.setdefault(workload, {})[fact] = None
    for workload in dict.fromkeys([*differs, *unknown]):
        yield WorkloadChange(
            workload=workload,
            differs=tuple(differs.get(workload, ())),
            unknown=tuple(unknown.get(workload, ())),
        )


def _workload_facts(result: CaseResult) -> Mapping[str, frozenset[object]]:
    records = result.usable
    hashes = {record.provenance.files.get(record.workload) for record in records if record.provenance}
    return {
        "its file": frozenset(hashes - {None}),
        "its variables or FLOPs": frozenset(record.model for record in records if record.model),
    }
