"""Rounds in which cases took windows beside each other, and the ratios that come of them."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.records.comparing.student_interval import RepeatedMean, repeated_mean
from harness.records.facts.rounds import Rounds
from harness.records.record import Record

TRIMMED_SHARE = 0.2


def differences_s(record: Record, other: Record) -> tuple[float, ...]:
    """Median step of one record less that of another, in seconds, in each round that both have."""
    return tuple(own_s - other_s for own_s, other_s in _together(record, other))


def log_ratios(record: Record, other: Record) -> tuple[tuple[float, ...], ...]:
    """Logarithms of the ratio of their steps in each round; several lists add up to what was asked for.

    Cases of different blocks meet in the baseline that both had beside them: the first list is the one's
    ratio to it, the second the other's in turn.

    Returns:
        Nothing where they have no rounds in common, nor a baseline.
    """
    together = _together(record, other)
    if together:
        return (_logs(together),)
    own, others = _beside_baseline(record), _beside_baseline(other)
    own_baseline = None if record.rounds is None else record.rounds.baseline
    others_baseline = None if other.rounds is None else other.rounds.baseline
    if own and own_baseline == other.case:
        return (_logs(own),)
    if others and others_baseline == record.case:
        return (_logs([(b, a) for a, b in others]),)
    if own and others and own_baseline == others_baseline:
        return _logs(own), _logs([(b, a) for a, b in others])
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedRatios:
    """Logarithms of the ratio of two cases' rates, one for each repeat in which they took windows in turn.

    Attributes:
        cores: the workers on whose cores the repeat of each case began, in the order of `logs`; None where
            both always began on the same, since the ratio then tells nothing of cores.
    """

    logs: tuple[float, ...]
    cores: tuple[tuple[int, int], ...] | None = None

    def mean(self) -> RepeatedMean:
        """Mean over the repeats; cores that differ in speed are no spread where each has had its turns."""
        return repeated_mean(self.logs, self.cores)


def paired_ratios(records: Sequence[Record], others: Sequence[Record]) -> PairedRatios:
    """The ratio of two cases, repeat by repeat.

    Args:
        records: of one case. others: of the other, which also counts where it was only timed beside the one.
    """
    own, of_others = {each.repeat: each for each in records}, {each.repeat: each for each in others}
    logs: list[float] = []
    cores: list[tuple[int, int]] = []
    for repeat in sorted({*own, *of_others}):
        first, second = own.get(repeat), of_others.get(repeat)
        if first is None:
            first = next((each for each in records if _was_beside(each, second)), None)
        elif second is None:
            second = next((each for each in others if _was_beside(each, first)), None)
        if first is not None and second is not None:
            log = _log_ratio(first, second)
            if log is not None:
                logs.append(log)
                cores.append(_cores(first, second))
    is_one = all(own == other for own, other in cores)
    return PairedRatios(logs=tuple(logs), cores=None if is_one else tuple(cores))


def trimmed_mean(values: Sequence[float]) -> float:
    """Mean without the highest and the lowest fifth.

    Args:
        values: at least one.
    Source:
        Tukey and McLaughlin 1963, "Less vulnerable confidence and significance procedures for location based
        on a single sample", Sankhyā A 25.
    """
    n_cut = int(TRIMMED_SHARE * len(values))
    kept = sorted(values)[n_cut : len(values) - n_cut]
    return math.fsum(kept) / len(kept)


def _cores(record: Record, other: Record) -> tuple[int, int]:
    """The workers on whose cores the two began in the rounds that `log_ratios` takes.

    Of cases that meet in a baseline, what is told is where each of these began.
    """
    own, others = record.rounds, other.rounds
    if own is not None and others is not None and own.block == others.block:
        return own.first_worker, others.first_worker
    # A baseline that was timed beside the one need have no rounds of its own.
    if own is not None and own.baseline == other.case:
        return own.first_worker, _baseline_first(own)
    if others is not None and others.baseline == record.case:
        return _baseline_first(others), others.first_worker
    assert own is not None
    assert others is not None
    return _baseline_first(own), _baseline_first(others)


def _baseline_first(rounds: Rounds) -> int:
    # Records that do not tell are of baselines that were on the same worker.
    return rounds.first_worker if rounds.baseline_first_worker is None else rounds.baseline_first_worker


def _log_ratio(record: Record, other: Record) -> float | None:
    """Logarithm of the ratio of two rates in one repeat; None where they were not timed in turn."""
    rounds = log_ratios(record, other)
    if not rounds or not record.batch_size or not other.batch_size:
        return None
    return math.log(record.batch_size / other.batch_size) - sum(map(trimmed_mean, rounds))


def _was_beside(baseline: Record, record: Record | None) -> bool:
    return record is not None and record.rounds is not None and record.rounds.baseline == baseline.case


def _together(record: Record, other: Record) -> list[tuple[float, float]]:
    own, others = record.rounds, other.rounds
    if own is None or others is None or own.block != others.block:
        return []
    return _both(own.step_s, others.step_s)


def _beside_baseline(record: Record) -> list[tuple[float, float]]:
    rounds = record.rounds
    if rounds is None or rounds.baseline_step_s is None:
        return []
    return _both(rounds.step_s, rounds.baseline_step_s)


def _both(first: Sequence[float], second: Sequence[float]) -> list[tuple[float, float]]:
    # One of them may have failed in a later round, and records made by hand may hold what is no time.
    return [(a, b) for a, b in zip(first, second, strict=False) if _have_ratio(a, b)]


def _have_ratio(first_s: float, second_s: float) -> bool:
    return first_s > 0.0 and 0.0 < second_s < math.inf and 0.0 < first_s / second_s < math.inf


def _logs(pairs: Sequence[tuple[float, float]]) -> tuple[float, ...]:
    return tuple(math.log(a / b) for a, b in pairs)
