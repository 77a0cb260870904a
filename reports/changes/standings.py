"""Cases of one run with their rates and baselines, paired with the same cases of another run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from harness.records.circumstances import ModelSize
from harness.records.comparison import PairedRatios, paired_ratios
from harness.records.record import Record
from reports.case_row import is_usable, rates_of
from reports.compare import baseline_of
from reports.load import Run
from reports.quantities import byte_count, plain, times
from reports.rows.row import followed_figures
from reports.shapes import BASELINE, ComparedShape, shape_of, shapes_of

Identity = tuple[ComparedShape, str]
"""What a case of two runs has in common: its shape and its strategy, as a person types it."""


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
    planned = next((each for each in records if each.batch_size is not None), None)
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


Pair = tuple[Standing, Standing]
"""One case in both runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadChange:
    """A workload in both runs.

    Attributes:
        differs: facts that say that it is another one. unknown: facts that a run did not record.
    """

    workload: str
    differs: tuple[str, ...]
    unknown: tuple[str, ...]


def workload_changes(pairs: Iterable[tuple[Standing | None, Standing | None]]) -> tuple[WorkloadChange, ...]:
    """Workloads that differ between two runs, or may differ because a run lacks their facts."""
    by_workload: dict[str, list[Pair]] = {}
    for before, after in pairs:
        if before is not None and after is not None:
            by_workload.setdefault(after.shape.workload, []).append((before, after))
    changes = (
        WorkloadChange(
            workload=workload,
            differs=tuple(dict.fromkeys([*_file(of_workload), *_model(of_workload), *_payload(of_workload)])),
            unknown=tuple(_unknown(of_workload)),
        )
        for workload, of_workload in by_workload.items()
    )
    return tuple(change for change in changes if change.differs or change.unknown)


def _file(pairs: Sequence[Pair]) -> Iterator[str]:
    old, new = ({digest for each in run for digest in _digests(each)} for run in zip(*pairs, strict=True))
    if old and new and old != new:
        yield "its file"


def _digests(standing: Standing) -> set[str]:
    digests = {_digest(record) for record in standing.records}
    return {digest for digest in digests if digest is not None}


def _digest(record: Record) -> str | None:
    return record.provenance.files.get(record.workload) if record.provenance else None


def _model(pairs: Sequence[Pair]) -> Iterator[str]:
    for before, after in pairs:
        old, new = _size(before), _size(after)
        if old is None or new is None:
            continue
        if old.n_variables != new.n_variables:
            yield f"number of variables: {old.n_variables} before, now {new.n_variables}"
        if old.variable_bytes != new.variable_bytes:
            yield f"bytes of variables: {_moved(old.variable_bytes, new.variable_bytes)}"
        flops = old.flops_per_example, new.flops_per_example
        if flops[0] != flops[1]:
            shown = [plain(value) if value is not None else "not stated" for value in flops]
            yield f"FLOPs of an example: {shown[0]} before, now {shown[1]}"


def _size(standing: Standing) -> ModelSize | None:
    return next((record.model for record in standing.usable if record.model is not None), None)


def _payload(pairs: Sequence[Pair]) -> Iterator[str]:
    """The payload, if it changed in all cases that send, of two strategies at least."""
    moved = [(after.strategy.partition(":")[0], _moved_payload(before, after)) for before, after in pairs]
    sending = {strategy for strategy, change in moved if change is not None}
    changes = [change for _, change in moved if change is not None]
    if len(sending) > 1 and all(changes):
        yield f"payload of a step: {changes[0]}"


def _moved_payload(before: Standing, after: Standing) -> str | None:
    """Change of a payload, empty where it has none; None where nothing is sent or it is not known."""
    old, new = (LAYERS[PAYLOAD].values(standing.usable) for standing in (before, after))
    if not old or not new or not (any(old) or any(new)):
        return None
    was, now = fmean(old), fmean(new)
    if abs(now - was) <= PAYLOAD.least_effect * was:
        return ""
    return f"{after.strategy} {_moved(was, now)}"


def _moved(old: float, new: float) -> str:
    by = f", {times(new / old)}" if old else ""
    return f"{byte_count(old)} before, now {byte_count(new)}{by}"


def _unknown(pairs: Sequence[Pair]) -> Iterator[str]:
    """Facts that a run that has results did not record, as older versions did not."""
    usable = [pair for pair in pairs if pair[0].usable and pair[1].usable]
    if any(_size(each) is None for pair in usable for each in pair):
        yield "its variables and FLOPs"
    of_file = [[bool(_digests(each)) for each in pair] for pair in usable]
    if any(any(pair) and not all(pair) for pair in of_file):
        yield "the hash of its file"
