"""A report: comparisons with rows, verdict, notes and curves; sweeps, problems and provenance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from harness.records.conditions import BatchRule
from reports.rows.parts import MarkKind, Problem
from reports.rows.row import Row
from reports.statistics import Estimate, Mean, Ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultCell:
    """Result of a strategy in a fault scenario.

    Attributes:
        value: value of the metric; None if the training failed or diverged.
        outcome: reason in a word, if `value` is None.
        step: number of steps before the metric was computed.
        void: true if more workers are faulty than its rule tolerates.
        note: number of repeats with this outcome.
    """

    value: Mean | None
    outcome: str
    step: Mean | None
    void: bool
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultLine:
    """Results of a strategy in all fault scenarios.

    Attributes:
        cells: one per scenario; None if the strategy did not run in it.
        relative_rate: throughput without faults, relative to the baseline's.
        relative_note: interval of `relative_rate`, or the reason for its absence.
        worst: worst metric within the bound of its rule, or without faults.
        payload_bytes: bytes per step without faults.
        on_front: true if no other strategy is at least as good in `relative_rate` and `worst`, and better in
            one of them (Pareto front).
    """

    strategy: str
    cells: tuple[FaultCell | None, ...]
    relative_rate: float | None
    relative_note: str
    worst: float | None
    payload_bytes: float | None
    on_front: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultMatrix:
    """A metric by strategy and scenario, on one workload and cluster shape."""

    run: str
    workload: str
    shape: str
    metric: str
    less_is_better: bool
    baseline: str | None
    scenarios: tuple[tuple[str, tuple[str, ...]], ...]
    lines: tuple[FaultLine, ...]

    @property
    def title(self) -> str:
        return f"{self.metric[:1].upper()}{self.metric[1:]} under faults: {self.workload}"


Goal = Literal["fastest", "cheapest", "network"]
GOALS: tuple[Goal, ...] = ("fastest", "cheapest", "network")
VerdictKind = Literal["clear", "together", "no-interval", "none"]


Severity = Literal["warning", "note"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Best strategies for one goal.

    Attributes:
        strategies: strategies without a significant difference to the best one, the best figure first.
        certain: true if one strategy is significantly better than all others.
    """

    goal: Goal
    text: str
    strategies: tuple[str, ...]
    certain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Verdict of one comparison.

    Attributes:
        headline: label of the kind, and the claim about `goal`.
        details: figures behind the claim.
        answers: one for each goal with known figures.
    """

    kind: VerdictKind
    headline: str
    details: tuple[str, ...]
    leaders: tuple[str, ...]
    goal: Goal = "fastest"
    answers: tuple[Answer, ...] = ()

    @property
    def label(self) -> str:
        """Kind of the verdict in capitals, and its doubts, as in `WINNER (provisional, machine busy)`."""
        return self.headline.partition(": ")[0]

    @property
    def claim(self) -> str:
        """Headline without its label: winner or tied strategies, ratio, and repeats that would decide."""
        return self.headline.partition(": ")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Note on a comparison: a fixed phrase with its figures, and a remedy.

    Attributes:
        kind: row of the table of notes.
        remedy: advice; empty if there is none.
        strategies: strategies concerned; empty for all.
    """

    kind: str
    severity: Severity
    phrase: str
    remedy: str
    strategies: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return f"{self.phrase}; {self.remedy}" if self.remedy else self.phrase


ByteLayer = Literal["tcp", "payload"]
Bytes = tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPoint:
    """Throughput of a strategy at one number of devices.

    Attributes:
        perfect_rate: throughput of the reference per device × number of devices.
        efficiency: throughput ÷ `perfect_rate`.
    """

    workers: int
    replicas: int
    n_devices: int
    rate: Estimate
    perfect_rate: float
    efficiency: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingLine:
    """Throughput of a strategy by number of devices, fewest first.

    Attributes:
        reference: strategy that efficiencies refer to: `single`, or the strategy itself at its smallest size.
        reference_devices: number of devices of the reference.
    """

    strategy: str
    mark: MarkKind
    reference: str
    reference_devices: int
    points: tuple[ScalingPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Throughput by number of devices, with all else equal.

    Attributes:
        kind: strong scaling with the batch rule `global`, weak scaling with `per-replica`.
        batch_size: examples per step in strong scaling, per replica in weak scaling.
        fastest: sentence with the winner at each number of workers; empty if there is none.
    """

    run: str
    workload: str
    shape: str
    kind: Literal["strong", "weak"]
    batch_size: int | None
    lines: tuple[ScalingLine, ...]
    fastest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPoint:
    """Throughput of a strategy at a requested link rate in Mbit/s; None for no limit."""

    requested_mbit: float | None
    measured_mbit: Mean | None
    rate: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLine:
    """Throughput of a strategy by link rate, slowest first and no limit last."""

    strategy: str
    mark: MarkKind
    can_win: bool
    points: tuple[LinkPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossOver:
    """Crossover of two strategies between two link rates.

    Attributes:
        at_mbit: link rate of equal throughput, interpolated linearly in log(ratio) over log(rate); None if
            the faster link has no limit.
        ahead_below, ahead_above: faster strategy on slower and on faster links.
        is_shown: true if the difference is significant at both link rates.
    """

    slower_mbit: float
    faster_mbit: float | None
    at_mbit: float | None
    ahead_below: str
    ahead_above: str
    n: int
    is_shown: bool
    sentence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSensitivity:
    """Throughput by link rate, with all else equal, and crossovers of the best strategy.

    Attributes:
        sentences: sentences on crossovers, their absence, or the reason why they are unknown.
    """

    run: str
    workload: str
    shape: str
    lines: tuple[LinkLine, ...]
    cross_overs: tuple[CrossOver, ...]
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TradeOffPoint:
    """Throughput and bytes per step of a strategy.

    Attributes:
        is_bound: true if `sent_bytes` is an upper bound.
        on_front: true for a candidate that no other candidate dominates: at least as good in both figures and
            significantly better in one (Pareto front).
    """

    strategy: str
    mark: MarkKind
    can_win: bool
    rate: Estimate
    sent_bytes: Mean
    is_bound: bool
    on_front: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class TradeOff:
    """Throughput against bytes per step: TCP bytes if all candidates have them, else the payload."""

    layer: ByteLayer
    points: tuple[TradeOffPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCurve:
    """Loss of a case by step, over n repeats.

    Attributes:
        at_steps: step numbers; the first step of the warm-up is 1.
        at_s: seconds up to these steps, mean over repeats: steps of a window at its median, those of the
            warm-up at the repeat's median.
        mean: mean loss over repeats; None if the loss is not finite in a repeat.
        low, high: range over repeats; empty if all agree in five digits.
    """

    strategy: str
    mark: MarkKind
    n: int
    at_steps: tuple[int, ...]
    at_s: tuple[float, ...]
    mean: tuple[float | None, ...]
    low: tuple[float | None, ...]
    high: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundLine:
    """Step times of a strategy by round, relative to its median over all rounds; None without a window."""

    strategy: str
    mark: MarkKind
    n: int
    median_s: float
    relative: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsOverTime:
    """Windows of all repeats in order of time.

    Attributes:
        repeats, numbers: repeat and number of each point's first round.
        rounds_per_point: number of consecutive rounds that a point averages.
    """

    repeats: tuple[int, ...]
    numbers: tuple[int, ...]
    rounds_per_point: int
    lines: tuple[RoundLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMemory:
    """Peak resident memory of each worker over n repeats.

    Attributes:
        peak_bytes: mean over repeats.
        low, high: range over repeats; empty if all agree.
        variable_bytes: part of variables and slots; None if it is not recorded.
    """

    strategy: str
    n: int
    peak_bytes: Bytes
    low: Bytes
    high: Bytes
    variable_bytes: Bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """Data of one comparison's charts; None or empty if not recorded."""

    trade_off: TradeOff | None = None
    losses: tuple[LossCurve, ...] = ()
    rounds: RoundsOverTime | None = None
    memory: tuple[WorkerMemory, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Part of a run folder that the report could not use, and the reason.

    Attributes:
        is_damage: true if a file is damaged or missing.
    """

    where: str
    why: str
    is_damage: bool = False


TrustLevel = Literal["green", "grey", "amber", "red"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trust:
    """Trust light of a report: its colour, a word for it and the reasons in one line."""

    level: TrustLevel
    word: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All strategies on one workload and cluster shape.

    Attributes:
        rows: rows by rank, the unranked ones last.
        notes: texts of `note_values`, warnings first.
        replicas_on_gpus: replicas on each GPU if some share one, otherwise empty.
        other_baselines: ratios of all strategies to each selectable baseline.
    """

    run: str
    workload: str
    shape: str
    provider: str
    device: str
    workers: int
    replicas: int
    batch_size: int | None
    batch_rule: BatchRule | None
    link_requested_mbit: float | None
    link_measured_mbit: Mean | None
    precision: str
    xla: bool
    tf32: bool | None
    scenario: str
    faults: tuple[str, ...]
    baseline: str | None
    rows: tuple[Row, ...]
    verdict: Advice
    notes: tuple[str, ...]
    replicas_on_gpus: tuple[int, ...] = ()
    other_baselines: Mapping[str, Mapping[str, Ratio]] = field(default_factory=dict)
    curves: Curves = Curves()
    note_values: tuple[Note, ...] = ()

    @property
    def warnings(self) -> tuple[Note, ...]:
        """Warnings, the most severe first; the first ones concern different subjects."""
        return tuple(note for note in self.note_values if note.severity == "warning")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Provenance of a run: its name, folder, facts and resolved experiment."""

    run: str
    folder: str
    facts: tuple[tuple[str, str], ...]
    experiment: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class FactValue:
    """Value of a fact, and the number of records with it; None for a fact of the whole run."""

    text: str
    n_records: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FactDifference:
    """Fact that differs between runs of a report, or between records of one run.

    Attributes:
        values: for each run, in the order of the report, its values, most frequent first.
    """

    fact: str
    values: tuple[tuple[FactValue, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictionErrors:
    """Errors of predicted steps, predicted ÷ measured − 1, of a strategy or of all together.

    Attributes:
        strategy: empty for all together.
        median, p90: median and 90th percentile of the errors without their signs.
        mean: mean of the errors; above 0 if predictions are too slow.
    """

    strategy: str
    n: int
    median: float
    p90: float
    mean: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Residuals:
    """Errors of all predictions in a report.

    Attributes:
        rank_agreement: Kendall's τ between the predicted and the measured order of strategies, mean over
            `n_orders` comparisons; None if none has two predicted strategies.
    """

    overall: PredictionErrors
    by_strategy: tuple[PredictionErrors, ...]
    rank_agreement: float | None
    n_orders: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All contents of a report; `hints` are further commands for the same runs.

    Attributes:
        residuals: errors of predicted steps; None if none was predicted.
    """

    title: str
    comparisons: tuple[Comparison, ...]
    fault_matrices: tuple[FaultMatrix, ...]
    scaling: tuple[Scaling, ...]
    link_sensitivity: tuple[LinkSensitivity, ...]
    problems: tuple[Problem, ...]
    left_out: tuple[LeftOut, ...]
    origins: tuple[Origin, ...]
    differences: tuple[FactDifference, ...] = ()
    hints: tuple[str, ...] = ()
    trust: Trust
    residuals: Residuals | None = None

    def run_in_words(self, run: str) -> str:
        """Folder and name of a run; empty in a report of one run."""
        if len(self.origins) < 2:
            return ""
        folders = {origin.folder for origin in self.origins if origin.run == run}
        # Copies of a run share its name.
        folder = folders.pop() if len(folders) == 1 else run
        return run if folder in ("", run) else f"{folder} ({run})"
