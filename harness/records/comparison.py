"""Comparison of records: key of comparable runs, ratios of paired rounds, intervals of their means."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from scipy.special import stdtrit

from harness.canonical import canonical_hash, json_value
from harness.records.conditions import Method
from harness.records.outcome import Rounds
from harness.records.record import Record

_LATER = (
    "rounds",
    "window_s",
    "precision",
    "xla",
    "tf32",
    "input",
    "input_placement",
    "freed_memory",
    "scenario",
    "faults",
    "replicas_on_gpus",
    "timed_unit",
)
"""Fields of a method that enter the key only if they differ from the default for older records."""
_SETTINGS = ("governor", "turbo", "hyper_threads", "gpus")
_NOT_MEASURED = ("seed", "until_ci")


def comparison_key(record: Record) -> str:
    """Hash of everything that must be equal to compare two records of different runs; 16 hex digits."""
    return canonical_hash(comparable_facts(record))[:16]


def comparable_facts(record: Record) -> dict[str, object]:
    """Facts that must be equal to compare two records of different runs.

    They cover workload, strategy, shape, batch, method and machine, but not the code, whose changes are the
    subject of such a comparison.
    """
    machine = json_value(record.machine)
    if isinstance(machine, dict):
        # A patched kernel is the same machine; runs before and after the patch should be compared.
        machine.pop("kernel", None)
        # Records without these fields keep their key.
        machine = {key: value for key, value in machine.items() if key not in _SETTINGS or value is not None}
    return {
        "workload": record.workload,
        "workload_params": record.workload_params,
        "strategy": record.strategy,
        "strategy_params": record.strategy_params,
        "provider": record.provider,
        "device": record.device,
        "workers": record.workers,
        "replicas": record.replicas,
        "batch_size": record.batch_size,
        "requested_mbit": record.link.requested_mbit if record.link else None,
        # Records without these fields keep their key.
        **({"links": record.link.requested_limits} if record.link and record.link.workers else {}),
        "method": None if record.method is None else _measured(record.method),
        "machine": machine,
    }


def _measured(method: Method) -> dict[str, object]:
    values = {item.name: (getattr(method, item.name), item.default) for item in dataclasses.fields(method)}
    if method.tf32:
        # TensorFlow's default, which GPUs used before the field existed.
        del values["tf32"]
    return {
        name: value
        for name, (value, default) in values.items()
        if name not in _NOT_MEASURED and (name not in _LATER or value != default)
    } | {"sparse_duplicates": _duplicates(method)}


def _duplicates(method: Method) -> str:
    """`kept` if rows with equal ids stayed separate; else `merged`, also without such rows."""
    return "kept" if method.sparse_duplicates == "kept" else "merged"


CONFIDENCE = 0.95
SEQUENTIAL_CONFIDENCE = 0.97
"""Confidence if repeats are added until intervals are narrow; these then cover 95 % (decision 0042)."""
MIN_REPEATS_INTERVAL = 3
"""With fewer repeats, the spread cannot be estimated."""
_MIN_OF_STRATUM = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class RepeatedMean:
    """A mean over repeats.

    Attributes:
        error: standard error of the mean. freedom: its degrees of freedom. Both None with too few repeats.
    """

    value: float
    error: float | None = None
    freedom: float | None = None

    def half_width(self, confidence: float = CONFIDENCE) -> float | None:
        """Half the width of the confidence interval; None with too few repeats.

        Args:
            confidence: coverage of the interval, in (0, 1).
        """
        if self.error is None or self.freedom is None:
            return None
        return float(stdtrit(self.freedom, 0.5 + confidence / 2)) * self.error

    def minus(self, other: RepeatedMean) -> RepeatedMean:
        """Difference from the mean of other repeats.

        Source:
            Welch 1947, "The generalization of Student's problem when several different population variances
            are involved", Biometrika 34.
        """
        value = self.value - other.value
        if self.error is None or other.error is None or self.freedom is None or other.freedom is None:
            return RepeatedMean(value=value)
        error = math.hypot(self.error, other.error)
        if error == 0.0:
            return RepeatedMean(value=value, error=0.0, freedom=self.freedom + other.freedom)
        # Shares instead of variances, because squares of tiny variances would underflow to 0 / 0.
        share, other_share = (self.error / error) ** 2, (other.error / error) ** 2
        freedom = 1.0 / (share**2 / self.freedom + other_share**2 / other.freedom)
        return RepeatedMean(value=value, error=error, freedom=freedom)


def repeated_mean(values: Sequence[float], strata: Sequence[Hashable] | None = None) -> RepeatedMean:
    """Mean of values, at least one; with strata, the mean of the strata's means, within-stratum spread only.

    Args:
        values: one for each repeat, such as logarithms of ratios.
        strata: group of each repeat by design, such as its cores; ignored if a group has a single repeat,
            and so no spread.
    """
    groups: dict[Hashable, list[float]] = {}
    if strata is not None:
        for stratum, value in zip(strata, values, strict=True):
            groups.setdefault(stratum, []).append(value)
    if min(map(len, groups.values()), default=0) < _MIN_OF_STRATUM:
        groups = {None: list(values)}
    means = {stratum: math.fsum(group) / len(group) for stratum, group in groups.items()}
    value = math.fsum(means.values()) / len(means)
    if len(values) < MIN_REPEATS_INTERVAL:
        return RepeatedMean(value=value)
    freedom = len(values) - len(groups)
    deviations = [v - means[stratum] for stratum, group in groups.items() for v in group]
    variance = math.fsum(deviation * deviation for deviation in deviations) / freedom
    error = math.sqrt(variance * sum(1 / len(group) for group in groups.values())) / len(groups)
    return RepeatedMean(value=value, error=error, freedom=freedom)


TRIMMED_SHARE = 0.2


def differences_s(record: Record, other: Record) -> tuple[float, ...]:
    """Median step of one record minus that of another, in seconds, in each round that both have."""
    return tuple(own_s - other_s for own_s, other_s in _together(record, other))


def log_ratios(record: Record, other: Record) -> tuple[tuple[float, ...], ...]:
    """Logarithms of the ratio of their steps in each round; with several lists, they are to be added.

    Cases of different blocks are compared through the common baseline: the first list is the record's ratio
    to it, the second the baseline's ratio to the other.

    Returns:
        Empty if they have neither common rounds nor a common baseline.
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
    """Logarithms of the ratio of two cases' rates, one for each repeat with interleaved windows.

    Attributes:
        cores: for each repeat, the workers whose cores each case had first, in the order of `logs`; None if
            both always began on the same cores.
    """

    logs: tuple[float, ...]
    cores: tuple[tuple[int, int], ...] | None = None

    def mean(self) -> RepeatedMean:
        """Mean over the repeats; different cores are no spread if each had its turn."""
        return repeated_mean(self.logs, self.cores)


def paired_ratios(records: Sequence[Record], others: Sequence[Record]) -> PairedRatios:
    """Ratio of two cases, repeat by repeat.

    Args:
        records: records of one case. others: records of the other; a repeat timed only beside the first case
            counts, too.
    """
    own, of_others = {record.repeat: record for record in records}, {other.repeat: other for other in others}
    logs: list[float] = []
    cores: list[tuple[int, int]] = []
    for repeat in sorted({*own, *of_others}):
        first, second = own.get(repeat), of_others.get(repeat)
        if first is None:
            first = next((record for record in records if _was_beside(record, second)), None)
        elif second is None:
            second = next((other for other in others if _was_beside(other, first)), None)
        if first is not None and second is not None:
            log = _log_ratio(first, second)
            if log is not None:
                logs.append(log)
                cores.append(_cores(first, second))
    is_one = all(own == other for own, other in cores)
    return PairedRatios(logs=tuple(logs), cores=None if is_one else tuple(cores))


def trimmed_mean(values: Sequence[float]) -> float:
    """Mean without the highest and the lowest fifth of the values.

    Args:
        values: at least one.
    Source:
        Tukey and McLaughlin 1963, "Less vulnerable confidence and significance procedures for location based
        on a single sample", Sankhyā A 25.
    """
    n_cut = int(TRIMMED_SHARE * len(values))
    middle = sorted(values)[n_cut : len(values) - n_cut]
    return math.fsum(middle) / len(middle)


def _cores(record: Record, other: Record) -> tuple[int, int]:
    """First workers, by number, of the two records in the rounds of `log_ratios`.

    Cases with a common baseline are described by the workers on which each began.
    """
    own, others = record.rounds, other.rounds
    if own is not None and others is not None and own.block == others.block:
        return own.first_worker, others.first_worker
    # A baseline that was timed with one record may have no rounds of its own.
    if own is not None and own.baseline == other.case:
        return own.first_worker, _baseline_first(own)
    if others is not None and others.baseline == record.case:
        return _baseline_first(others), others.first_worker
    assert own is not None
    assert others is not None
    return _baseline_first(own), _baseline_first(others)


def _baseline_first(rounds: Rounds) -> int:
    # In records without the field, both began on the same worker.
    return rounds.first_worker if rounds.baseline_first_worker is None else rounds.baseline_first_worker


def _log_ratio(record: Record, other: Record) -> float | None:
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
    # A case may have failed in a later round, and handmade records may have invalid times.
    return [
        (a, b)
        for a, b in zip(first, second, strict=False)
        if a > 0.0 and 0.0 < b < math.inf and 0.0 < a / b < math.inf
    ]


def _logs(pairs: Sequence[tuple[float, float]]) -> tuple[float, ...]:
    return tuple([math.log(a / b) for a, b in pairs])
