"""Changes between two runs, case by case, and how sure they are.

A machine is faster on one day than on another, and then all rates are. So a case is judged by its ratio to
the baseline, formed within rounds, and by how that ratio has changed: m is the mean logarithm of the ratios
of a run's repeats,

    change           exp(m_after - m_before), with Welch's interval

If most cases have changed alike, the baseline itself may have changed: its verdict is left open, and its rate
is shown. A case without rounds beside a baseline in both runs is judged by its rate, in which a slower day
shows. The same holds for all cases of a workload that differs between the runs, because its baseline differs,
too. Bytes of a step are judged separately.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median
from typing import Literal

from harness.records.comparison import RepeatedMean, comparable_facts, repeated_mean
from reports.changes.standings import (
    LAYERS,
    PAYLOAD,
    Standing,
    WorkloadChange,
    more_bytes,
    paired,
    standings,
    workload_changes,
)
from reports.load import Run
from reports.marks import WORDS, mark_of
from reports.origins import leaves
from reports.quantities import byte_count, times
from reports.shapes import shape_text
from reports.statistics import Interval, exp, interval_of, mean_of

Verdict = Literal["faster", "slower", "same", "cannot-tell", "not-comparable"]
_BASELINE = "baseline of the ratios; a slower machine would look the same as a slower baseline"
DEFAULT_THRESHOLD = 0.03
_MOST_OF = 3
"""Cases beside the baseline from which on one can speak of most of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """Quotient of a figure after and before, with its 95 % interval; None if repeats are too few for one."""

    value: float
    interval: Interval | None

    @classmethod
    def of(cls, log: RepeatedMean) -> Factor:
        """From its logarithm."""
        return cls(value=exp(log.value), interval=interval_of(log))


@dataclass(frozen=True, slots=True, kw_only=True)
class ByRate:
    """A verdict is of the rate, in which a slower machine shows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByBaseline:
    """A verdict is of the rate's ratio to that of a baseline."""

    name: str


JudgedBy = ByRate | ByBaseline


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One case in both runs.

    Attributes:
        factor: by what the figure was multiplied that the verdict is of; above 1 is faster.
        judged_by: what that figure is; None where there is no verdict.
        rate_factor: the same of the rate.
        why: what the verdict rests on, or why there is none.
        is_baseline: others are measured by it, so that it is left open.
        broken: it had a result, or computed the right thing, and has or does no more.
        more_bytes: layers at which it sends more than before, and how much.
        notes: what else has changed.
    """

    case: str
    workload: str
    shape: str
    strategy: str
    verdict: Verdict
    why: str
    factor: Factor | None = None
    judged_by: JudgedBy | None = None
    rate_factor: Factor | None = None
    is_baseline: bool = False
    broken: bool = False
    more_bytes: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Changes:
    """Two runs, the cases that either has, and what of their surroundings differs.

    Attributes:
        geometric_mean: of the rates' factors of all comparable cases of workloads that are the same; None
            where there is none.
        workloads: those that are not the same in both, or of which a run does not say enough.
        differences: of code and machine, as `name: before, now after`.
    """

    before: str
    after: str
    threshold: float
    cases: tuple[Change, ...]
    geometric_mean: float | None
    workloads: tuple[WorkloadChange, ...]
    differences: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        """True if no case could be compared."""
        return all(case.verdict == "not-comparable" for case in self.cases)

    @property
    def regressed(self) -> tuple[Change, ...]:
        """Cases that are slower, send more, or are broken."""
        return tuple(
            case for case in self.cases if case.verdict == "slower" or case.more_bytes or case.broken
        )


def changes_between(
    before: Run,
    after: Run,
    *,
    threshold: float = DEFAULT_THRESHOLD,
    by_rates: bool | None = None,
    anyway: bool = False,
) -> Changes:
    """Set the cases of a run against those of an earlier one.

    Args:
        threshold: change of a figure, as a share of it, up to which a case counts as the same.
        by_rates: True: rates only. False: ratios where there are any. None: rates for workloads that differ,
            else ratios.
        anyway: judge cases whose circumstances differ, too.
    """
    pairs = tuple(paired(standings(before), standings(after)))
    workloads = tuple(workload_changes(pairs))
    changed = frozenset(workload.workload for workload in workloads if workload.differs)
    judge = _Judge(threshold=threshold, by_rates=by_rates, anyway=anyway, changed_workloads=changed)
    cases = tuple(judge.change(a, b) for a, b in pairs)
    cases = tuple(_with_most(case, cases) for case in cases)
    logs = [
        math.log(case.rate_factor.value)
        for case in cases
        if case.rate_factor is not None
        and case.verdict != "not-comparable"
        and case.workload not in changed
        and 0.0 < case.rate_factor.value < math.inf
    ]
    return Changes(
        before=before.name,
        after=after.name,
        threshold=threshold,
        cases=cases,
        geometric_mean=math.exp(fmean(logs)) if logs else None,
        workloads=workloads,
        differences=tuple(_surroundings(before, after)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judge:
    threshold: float
    by_rates: bool | None
    anyway: bool
    changed_workloads: Collection[str]

    def change(self, before: Standing | None, after: Standing | None) -> Change:
        """Change of a case, which at least one run has."""
        one = after or before
        assert one is not None
        change = Change(
            case=one.records[0].case,
            workload=one.shape.workload,
            shape=shape_text(one.shape),
            strategy=one.strategy,
            verdict="not-comparable",
            why="",
        )
        if before is None or after is None:
            return replace(change, why=f"only in the {'later' if before is None else 'earlier'} run")
        broken = _broken(before, after)
        change = replace(change, broken=bool(broken), notes=tuple(_notes(before, after)))
        missing = next((each for each in (before, after) if not each.rates), None)
        if missing is not None:
            return replace(change, why=broken or f"no result: {_why_missing(missing)}")
        rate = _mean_rate(after).minus(_mean_rate(before))
        change = replace(change, rate_factor=Factor.of(rate))
        differences = _differences(*(comparable_facts(each.usable[0]) for each in (before, after)))
        if differences and not self.anyway:
            return replace(change, why=f"not comparable: {'; '.join(differences)}")
        change = replace(change, more_bytes=tuple(more_bytes(before.usable, after.usable)))
        is_by_rate = self.by_rates
        if is_by_rate is None:
            is_by_rate = after.shape.workload in self.changed_workloads
        judged_by, log = _judged_by(before, after, rate, is_by_rate=is_by_rate)
        factor = Factor.of(log)
        is_open = isinstance(judged_by, ByRate) and after.is_baseline and not is_by_rate
        verdict, why = self._verdict(factor)
        if is_open:
            verdict, why = "cannot-tell", _BASELINE
        reasons = (broken, why, *(f"compared although {difference}" for difference in differences))
        return replace(
            change,
            factor=factor,
            judged_by=judged_by,
            verdict=verdict,
            is_baseline=is_open,
            why="; ".join(filter(None, reasons)),
        )

    def _verdict(self, factor: Factor) -> tuple[Verdict, str]:
        """Verdict of an interval on a change beyond the threshold, and the reason if it is uncertain."""
        interval = factor.interval
        if interval is None:
            return "cannot-tell", "no interval: both runs need 3 repeats"
        low, high = 1 - self.threshold, 1 + self.threshold
        if interval.high < low:
            return "slower", ""
        if interval.low > high:
            return "faster", ""
        if low <= interval.low and interval.high <= high:
            return "same", ""
        return "cannot-tell", "the interval reaches beyond the threshold; more repeats would decide"


def _judged_by(
    before: Standing, after: Standing, rate: RepeatedMean, *, is_by_rate: bool
) -> tuple[JudgedBy, RepeatedMean]:
    shift = None if is_by_rate else _shift(before, after)
    if shift is None or after.baseline is None:
        return ByRate(), rate
    return ByBaseline(name=after.baseline), shift


def _shift(before: Standing, after: Standing) -> RepeatedMean | None:
    """Change of the logarithm of a case's ratio to its baseline; None if a run does not have the ratio."""
    if before.baseline != after.baseline or not before.against.logs or not after.against.logs:
        return None
    return after.against.mean().minus(before.against.mean())


def _with_most(change: Change, cases: Sequence[Change]) -> Change:
    by_it = ByBaseline(name=change.strategy)
    beside = [case.factor for case in cases if case.workload == change.workload and case.judged_by == by_it]
    moved = [factor for factor in beside if factor and factor.interval and not factor.interval.contains(1.0)]
    up = [factor.value for factor in moved if factor.value > 1]
    alike = up if len(up) * 2 > len(moved) else [factor.value for factor in moved if factor.value < 1]
    if change.verdict != "cannot-tell" or len(beside) < _MOST_OF or len(alike) * 2 <= len(beside):
        return change
    most = f"{len(alike)} of {len(beside)} ratios to it changed alike, about {times(median(alike))}"
    return replace(change, why=f"{change.why}; {most}: either they changed or the baseline did")


def _mean_rate(standing: Standing) -> RepeatedMean:
    return repeated_mean([math.log(rate) for rate in standing.rates])


def _broken(before: Standing, after: Standing) -> str:
    """In what way a case that was sound is no more; empty where it is, or never was."""
    was, now = mark_of(before.records), mark_of(after.records)
    if before.rates and not after.rates and not all(r.is_broken_by_faults for r in after.records):
        return f"no result any more: {_why_missing(after)}"
    if was.proven and now.kind in ("not-equivalent", "beyond-bound"):
        return f"correctness changed: {WORDS[was.kind]} before, now {WORDS[now.kind]}"
    return ""


def _why_missing(standing: Standing) -> str:
    last = standing.records[-1]
    if last.error is not None:
        return f"{last.error.type}: {last.error.message}"
    return last.plausibility or last.status


def _notes(before: Standing, after: Standing) -> Iterator[str]:
    was, now = mark_of(before.records).kind, mark_of(after.records).kind
    if was != now:
        yield f"mark: {WORDS[was]} before, now {WORDS[now]}"
    for layer, figure in LAYERS.items():
        old, new = mean_of(figure.values(before.usable)), mean_of(figure.values(after.usable))
        if old is None or new is None or abs(new.value - old.value) <= PAYLOAD.least_effect * old.value:
            continue
        by = f", {times(new.value / old.value)}" if old.value else ""
        yield f"{layer.name} per step: {byte_count(old.value)} before, now {byte_count(new.value)}{by}"


def _surroundings(before: Run, after: Run) -> list[str]:
    facts: list[dict[str, object]] = []
    for run in (before, after):
        first = next(iter(run.records), None)
        sections = {name: getattr(first, name, None) for name in ("machine", "provenance")}
        facts.append({name: dataclasses.asdict(found) for name, found in sections.items() if found})
    return _differences(*facts)


def _differences(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """Each leaf that is not the same, as `name: before, now after`."""
    old, new = dict(leaves("", before)), dict(leaves("", after))
    return [
        _difference(name, old.get(name), new.get(name))
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


_FILES = "provenance.files."
_HASH = re.compile("[0-9a-f]{32,}")
_N_DIGITS = 9


def _difference(name: str, before: str | None, after: str | None) -> str:
    """One difference in words; of files only their names, of other hashes their first digits."""
    if name.startswith(_FILES) and before and after:
        return f"{name.rpartition('/')[2].removeprefix(_FILES).partition(':')[0]} was edited"
    old, new = (_HASH.sub(lambda m: m[0][:_N_DIGITS], text or "unknown") for text in (before, after))
    return f"{name}: {old}, now {new}"
