"""Changes of each case between two runs, with 95 % intervals.

    change = exp(m_after - m_before)        interval: Welch 1947

m is the mean over a run's repeats of log(throughput ÷ the baseline's throughput in the same rounds). Such
ratios do not depend on the load of the machine, which differs from day to day.

The baseline itself has no such ratio: its verdict stays open, with a note if most ratios to it moved alike.
Throughput decides instead of the ratio if a run has no paired rounds, or if the workload differs between the
runs, because its baseline differs, too. Bytes per step are compared separately.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median

from harness.records.comparison import RepeatedMean, comparable_facts, repeated_mean
from harness.records.conditions import short_hash
from harness.records.record import Record
from reports.changes import phrases
from reports.changes.case_results import (
    LAYERS,
    PAYLOAD,
    CaseResult,
    WorkloadChange,
    case_results,
    matched_cases,
    more_bytes,
    workload_changes,
)
from reports.changes.phrases import Verdict
from reports.load import Run
from reports.marks import WORDS, mark_of
from reports.origins import leaves
from reports.quantities import byte_count, times
from reports.shapes import shape_text
from reports.statistics import Interval, exp, interval_of, mean_of

DEFAULT_THRESHOLD = 0.03
_LEAST_RATIOS = 3
"""Fewest ratios to a baseline for a note that most of them moved alike."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """Figure after ÷ figure before, with its 95 % interval; None if there are too few repeats."""

    value: float
    interval: Interval | None

    @classmethod
    def of(cls, log: RepeatedMean) -> Factor:
        """Return the factor with a given logarithm."""
        return cls(value=exp(log.value), interval=interval_of(log))


@dataclass(frozen=True, slots=True, kw_only=True)
class ByRate:
    """Verdict by throughput, which depends on the load of the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ByBaseline:
    """Verdict by the ratio to the throughput of a baseline."""

    name: str


JudgedBy = ByRate | ByBaseline


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Change of one case between two runs.

    Attributes:
        factor: change of the figure that decides the verdict; above 1 is faster.
        judged_by: figure that decides the verdict; None without a verdict.
        rate_factor: change of the throughput.
        why: basis of the verdict, or the reason for its absence.
        is_baseline: true if ratios of other cases refer to this case, so that its verdict stays open.
        broken: true if the case lost its result, or its correctness.
        more_bytes: layers at which it sends more than before, with the factor.
        notes: other changes.
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
    """Changes of all cases that either of two runs has.

    Attributes:
        geometric_mean: geometric mean of the throughput factors of comparable cases whose workloads did not
            change; None without such cases.
        workloads: workloads that differ, or may differ.
        differences: facts of code and machine that differ, as `name: before, now after`.
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
    """Compare the cases of a run with those of an earlier one.

    Args:
        threshold: largest relative change that counts as the same.
        by_rates: True compares throughput only, False ratios if there are any; None compares throughput for
            workloads that differ, and ratios for all others.
        anyway: True to judge cases with different circumstances too.
    """
    pairs = tuple(matched_cases(case_results(before), case_results(after)))
    workloads = tuple(workload_changes(pairs))
    changed = frozenset(workload.workload for workload in workloads if workload.differs)
    judge = _Judge(threshold=threshold, by_rates=by_rates, anyway=anyway, changed_workloads=changed)
    cases = tuple(judge.change(a, b) for a, b in pairs)
    cases = tuple(_with_moved_ratios(case, cases) for case in cases)
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
        differences=tuple(_run_differences(before, after)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Judge:
    threshold: float
    by_rates: bool | None
    anyway: bool
    changed_workloads: Collection[str]

    def change(self, before: CaseResult | None, after: CaseResult | None) -> Change:
        """Change of a case that at least one run has."""
        one = after or before
        assert one is not None
        change = Change(
            case=one.records[0].case,
            workload=one.shape.workload,
            shape=shape_text(one.shape),
            strategy=one.strategy,
            verdict="not-comparable",
            why=phrases.ONLY_LATER if before is None else phrases.ONLY_EARLIER,
        )
        if before is None or after is None:
            return change
        broken = _broken(before, after)
        change = replace(change, broken=bool(broken), notes=tuple(_notes(before, after)))
        missing = next((result for result in (before, after) if not result.rates), None)
        if missing is not None:
            return replace(change, why=broken or phrases.NO_RESULT.format(error=_error(missing)))
        rate = _mean_rate(after).minus(_mean_rate(before))
        change = replace(change, rate_factor=Factor.of(rate))
        differences = _differences(*(_facts(result.usable[0]) for result in (before, after)))
        if differences and not self.anyway:
            return replace(change, why="; ".join(differences))
        change = replace(change, more_bytes=tuple(more_bytes(before.usable, after.usable)))
        reasons = [broken, *(phrases.COMPARED_ANYWAY.format(difference=text) for text in differences)]
        return self._judged(change, before, after, rate, reasons)

    def _judged(
        self, change: Change, before: CaseResult, after: CaseResult, rate: RepeatedMean, reasons: list[str]
    ) -> Change:
        """Add the verdict to the change of a case with results in both runs."""
        is_by_rate = self.by_rates
        if is_by_rate is None:
            is_by_rate = after.shape.workload in self.changed_workloads
        shift = None if is_by_rate else _shift(before, after)
        judged_by: JudgedBy = ByRate()
        if shift is not None and after.baseline is not None:
            judged_by, rate = ByBaseline(name=after.baseline), shift
        factor = Factor.of(rate)
        verdict, why = self._verdict(factor)
        is_open = judged_by == ByRate() and after.is_baseline and not is_by_rate
        if is_open:
            verdict, why = "cannot-tell", phrases.BASELINE
        return replace(
            change,
            factor=factor,
            judged_by=judged_by,
            verdict=verdict,
            is_baseline=is_open,
            why="; ".join(filter(None, (*reasons, why))),
        )

    def _verdict(self, factor: Factor) -> tuple[Verdict, str]:
        """Verdict of an interval on a change beyond the threshold, and the reason if it is uncertain."""
        interval = factor.interval
        if interval is None:
            return "cannot-tell", phrases.NO_INTERVAL
        low, high = 1 - self.threshold, 1 + self.threshold
        if interval.high < low:
            return "slower", ""
        if interval.low > high:
            return "faster", ""
        if low <= interval.low and interval.high <= high:
            return "same", ""
        return "cannot-tell", phrases.WIDE_INTERVAL


def _shift(before: CaseResult, after: CaseResult) -> RepeatedMean | None:
    """Change of the logarithm of a case's ratio to its baseline; None if a run does not have the ratio."""
    if before.baseline != after.baseline or not before.ratios.logs or not after.ratios.logs:
        return None
    return after.ratios.mean().minus(before.ratios.mean())


def _with_moved_ratios(change: Change, cases: Sequence[Change]) -> Change:
    """Add a note to a baseline if most ratios to it moved alike."""
    by_it = ByBaseline(name=change.strategy)
    ratios = [case.factor for case in cases if case.workload == change.workload and case.judged_by == by_it]
    moved = [factor for factor in ratios if factor and factor.interval and not factor.interval.contains(1.0)]
    up = [factor.value for factor in moved if factor.value > 1]
    alike = up if len(up) * 2 > len(moved) else [factor.value for factor in moved if factor.value < 1]
    if change.verdict != "cannot-tell" or len(ratios) < _LEAST_RATIOS or len(alike) * 2 <= len(ratios):
        return change
    note = phrases.RATIOS_MOVED.format(n_moved=len(alike), n=len(ratios), factor=times(median(alike)))
    return replace(change, why=f"{change.why}; {note}")


def _mean_rate(result: CaseResult) -> RepeatedMean:
    return repeated_mean([math.log(rate) for rate in result.rates])


def _broken(before: CaseResult, after: CaseResult) -> str:
    """Reason why a case that had a correct result has none any more; empty otherwise."""
    was, now = mark_of(before.records), mark_of(after.records)
    if before.rates and not after.rates and not all(r.is_broken_by_faults for r in after.records):
        return phrases.NO_RESULT_ANY_MORE.format(error=_error(after))
    if was.proven and now.kind in ("not-equivalent", "beyond-bound"):
        return phrases.INCORRECT.format(before=WORDS[was.kind], after=WORDS[now.kind])
    return ""


def _error(result: CaseResult) -> str:
    last = result.records[-1]
    if last.error is not None:
        return f"{last.error.type}: {last.error.message}"
    return last.plausibility or last.status


def _notes(before: CaseResult, after: CaseResult) -> Iterator[str]:
    was, now = mark_of(before.records).kind, mark_of(after.records).kind
    if was != now:
        yield phrases.MARK_CHANGED.format(before=WORDS[was], after=WORDS[now])
    for layer, figure in LAYERS.items():
        old, new = mean_of(figure.values(before.usable)), mean_of(figure.values(after.usable))
        if old is None or new is None or abs(new.value - old.value) <= PAYLOAD.least_effect * old.value:
            continue
        text = phrases.BYTES_CHANGED.format(
            layer=layer.name, before=byte_count(old.value), after=byte_count(new.value)
        )
        yield f"{text}, {times(new.value / old.value)}" if old.value else text


def _facts(record: Record) -> dict[str, object]:
    """Facts that must be equal; of the batch its effective size, given by the experiment or by default."""
    params = {name: value for name, value in record.workload_params.items() if name != "batch_size"}
    return {**comparable_facts(record), "workload_params": params}


def _run_differences(before: Run, after: Run) -> list[str]:
    facts: list[dict[str, object]] = []
    for run in (before, after):
        first = next(iter(run.records), None)
        sections = {name: getattr(first, name, None) for name in ("machine", "provenance")}
        facts.append({name: dataclasses.asdict(section) for name, section in sections.items() if section})
    return _differences(*facts)


def _differences(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """Leaves that differ, as `name: before, now after`."""
    old, new = dict(leaves("", before)), dict(leaves("", after))
    return [
        _difference(name, old.get(name), new.get(name))
        for name in sorted({*old, *new})
        if old.get(name) != new.get(name)
    ]


_FILES = "provenance.files."
_HASH = re.compile("[0-9a-f]{32,}")


def _difference(name: str, before: str | None, after: str | None) -> str:
    """Describe one difference: of files only their names, of other hashes their first digits."""
    if name.startswith(_FILES) and before and after:
        return phrases.EDITED.format(file=name.rpartition("/")[2].removeprefix(_FILES).partition(":")[0])
    if name == "method.timed_unit":
        # A single step, the usual unit, is no fact.
        return phrases.TIMED_UNIT.format(before=before or "step", after=after or "step")
    old, new = (_HASH.sub(lambda m: short_hash(m[0]), text or "unknown") for text in (before, after))
    return phrases.DIFFERS.format(fact=name, before=old, after=new)
