"""Cases of one run with their rates and baselines, paired with the same cases of another run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from harness.records.comparison import PairedRatios, paired_ratios
from harness.records.record import Record
from reports.case_row import is_usable, rates_of
from reports.compare import baseline_of
from reports.load import Run
from reports.quantities import byte_count, times
from reports.rows.row import followed_figures
from reports.shapes import BASELINE, ComparedShape, shape_of, shapes_of

Identity = tuple[ComparedShape, str]
"""Shape and strategy, as a person types it, that a case has in common in two runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """One case of a run, all its repeats together.

    Attributes:
        usable: repeats that have a rate.
        baseline: the strategy that `against` refers to; None where there is none, or this is it.
        is_baseline: whether others refer to this one.
        against: ratios to it, one of each repeat in which both took windows in turn.
    """

    shape: ComparedShape
    strategy: str
    records: tuple[Record, ...]
    usable: tuple[Record, ...]
    baseline: str | None
    is_baseline: bool
    against: PairedRatios

    @property
    def rates(self) -> list[float]:
        """Examples per second of each usable repeat, by its median step."""
        return rates_of(self.usable)


def standings(run: Run) -> Mapping[Identity, Standing]:
    """All cases of a run, each once, in the order of its report."""
    found: dict[str, tuple[Identity, Standing]] = {}
    for shape, cases in shapes_of(run).items():
        usable = {name: tuple(filter(is_usable, records)) for name, records in cases.items()}
        rates = {name: rates_of(records) for name, records in usable.items()}
        baseline = baseline_of(run, cases, rates, notes=[])
        for name, records in cases.items():
            # `single` is beside the strategies of several shapes.
            if records[0].case in found:
                continue
            is_paired = baseline is not None and baseline != name
            standing = Standing(
                shape=shape,
                strategy=name,
                records=tuple(records),
                usable=usable[name],
                baseline=baseline if is_paired else None,
                is_baseline=baseline == name and len(cases) > 1,
                against=paired_ratios(usable[name], usable[baseline])
                if is_paired and baseline is not None
                else PairedRatios(logs=()),
            )
            found[records[0].case] = (_own_shape(shape, records), name), standing
    return dict(found.values())


def _own_shape(shape: ComparedShape, records: Sequence[Record]) -> ComparedShape:
    """The shape by which a case is known in another run: of `single` its own, whatever it stands beside."""
    if records[0].strategy != BASELINE:
        return shape
    planned = next((record for record in records if record.batch_size is not None), None)
    return shape if planned is None else replace(shape_of(planned), image=shape.image)


def paired(
    earlier: Mapping[Identity, Standing], later: Mapping[Identity, Standing]
) -> Iterator[tuple[Standing | None, Standing | None]]:
    """Each case with the same one of the other run, else with the only one that is about the same.

    That is one whose batch or links alone are others; where there is none, whose cores, memory or image are.
    """
    left = {identity: case for identity, case in earlier.items() if identity not in later}
    nearly = [_by_shape(left, ComparedShape.without_batch), _by_shape(left, ComparedShape.roughly)]
    for identity, case in later.items():
        before = earlier.get(identity)
        if before is None:
            shape, strategy = identity
            for known, of_shape in zip(nearly, (shape.without_batch(), shape.roughly()), strict=True):
                alike = [other for other in known.get((of_shape, strategy), ()) if other in left]
                if alike:
                    before = left.pop(alike[0]) if len(alike) == 1 else None
                    break
        yield before, case
    for case in left.values():
        yield case, None


def _by_shape(
    cases: Iterable[Identity], of_shape: Callable[[ComparedShape], ComparedShape]
) -> dict[Identity, list[Identity]]:
    found: dict[Identity, list[Identity]] = {}
    for shape, strategy in cases:
        found.setdefault((of_shape(shape), strategy), []).append((shape, strategy))
    return found


LAYERS = followed_figures()
"""Sent bytes that are followed from run to run."""
PAYLOAD = next(layer for layer in LAYERS if layer.metric == "payload_bytes")


def more_bytes(before: Sequence[Record], after: Sequence[Record]) -> Iterator[str]:
    """Layers at which each later repeat sends more than every earlier one, as `payload 2.00×`."""
    for layer, figure in LAYERS.items():
        old, new = figure.values(before), figure.values(after)
        if old and new and min(new) > max(old) * math.exp(layer.least_effect):
            by = times(min(new) / max(old)) if max(old) else f"{byte_count(min(new))}, none before"
            yield f"{layer.name} {by}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadChange:
    """A workload that is not the same in two runs, or may not be.

    Attributes:
        differs: facts that differ. unknown: facts that one of the runs did not record, as older versions.
    """

    workload: str
    differs: tuple[str, ...]
    unknown: tuple[str, ...]


def workload_changes(pairs: Iterable[tuple[Standing | None, Standing | None]]) -> Iterator[WorkloadChange]:
    """Workloads that differ between two runs, or may differ because a run lacks their facts."""
    differs: dict[str, dict[str, None]] = {}
    unknown: dict[str, dict[str, None]] = {}
    for before, after in pairs:
        if before is None or after is None or not (before.usable and after.usable):
            continue
        workload = after.shape.workload
        old, new = _facts_of_workload(before), _facts_of_workload(after)
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


def _facts_of_workload(standing: Standing) -> Mapping[str, frozenset[object]]:
    records = standing.usable
    hashes = {record.provenance.files.get(record.workload) for record in records if record.provenance}
    return {
        "its file": frozenset(hashes - {None}),
        "its variables or FLOPs": frozenset(record.model for record in records if record.model),
    }
