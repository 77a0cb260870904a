"""Where the cases of one run stand: their rates, and their ratios to the run's own baseline."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from harness.records.comparing.common_rounds import PairedRatios, paired_ratios
from harness.records.record import Record
from reports.case_row import is_usable
from reports.compare import baseline_of
from reports.load import Run
from reports.shapes import ComparedShape, shapes_of

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
        return [rate for record in self.usable if (rate := record.median_examples_per_s)]


def standings(run: Run) -> Mapping[Identity, Standing]:
    """All cases of a run, each once, in the order of its report."""
    found: dict[str, tuple[Identity, Standing]] = {}
    for shape, cases in shapes_of(run).items():
        usable = {name: tuple(filter(is_usable, records)) for name, records in cases.items()}
        rates = {
            name: [rate for r in records if (rate := r.median_examples_per_s)]
            for name, records in usable.items()
        }
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
            found[records[0].case] = (shape, name), standing
    return dict(found.values())


def paired(
    earlier: Mapping[Identity, Standing], later: Mapping[Identity, Standing]
) -> Iterator[tuple[Standing | None, Standing | None]]:
    """Each case with the same one of the other run; where only the batch is another, with that."""
    left = {identity: case for identity, case in earlier.items() if identity not in later}
    for identity, case in later.items():
        before = earlier.get(identity)
        if before is None:
            shape, strategy = identity
            alike = [
                other
                for other in left
                if (other[0].without_batch(), other[1]) == (shape.without_batch(), strategy)
            ]
            before = left.pop(alike[0]) if len(alike) == 1 else None
        yield before, case
    for case in left.values():
        yield case, None
