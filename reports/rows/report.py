"""A report, its comparisons, their recommendation, and the curves beside their rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from reports.rows.evidence import MarkKind, Problem
from reports.rows.row import Row
from reports.statistics import Estimate, Mean, Ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultCell:
    """Result of a strategy in a scenario: a metric after so many steps, or another outcome in a word.

    `void`: more workers are faulty than its rule is for. `note`: what the outcome rests on.
    """

    value: Mean | None
    outcome: str
    step: Mean | None
    void: bool
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultLine:
    """A strategy in all scenarios; a cell is None where it was not run.

    `relative_rate` and `payload_bytes` are without faults, `relative_note` is the rate's interval or why it
    has none. `worst` is the worst of what counts: within its rule's bound, and without faults.
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
    """Strategy that serves one goal best, in a line.

    `strategies` are those that the repeats cannot tell apart, the best figure first; `certain` where they
    show that one is best.
    """

    goal: Goal
    text: str
    strategies: tuple[str, ...]
    certain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Verdict on one comparison: its headline, and details that the claim rests on.

    `headline` is the label of the kind and the claim. `answers` holds one for each goal that figures are
    known for; the headline is that of `goal`.
    """

    kind: VerdictKind
    headline: str
    details: tuple[str, ...]
    leaders: tuple[str, ...]
    goal: Goal = "fastest"
    answers: tuple[Answer, ...] = ()

    @property
    def label(self) -> str:
        """First words of the headline, in capitals."""
        return self.headline.partition(": ")[0]

    @property
    def claim(self) -> str:
        """The headline after its label: winner or tied strategies, their ratio, and what would decide."""
        return self.headline.partition(": ")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Remark on a comparison: a fixed phrase with its figures, and what to do about it.

    `kind` is a row of the table of notes, `remedy` may be empty. `strategies` are those that it concerns,
    none if all.
    """

    kind: str
    severity: Severity
    phrase: str
    remedy: str
    strategies: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        return f"{self.phrase}; {self.remedy}" if self.remedy else self.phrase


BatchRule = Literal["global", "per-replica"]
BATCH_RULES: tuple[BatchRule, ...] = ("global", "per-replica")
ByteLayer = Literal["tcp", "payload"]
Bytes = tuple[int | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingPoint:
    """The rate of a strategy on so many devices; `perfect_rate` is the reference's rate for each of them.

    `efficiency`: the rate as a share of the perfect one.
    """

    workers: int
    replicas: int
    n_devices: int
    rate: Estimate
    perfect_rate: float
    efficiency: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalingLine:
    """A strategy by the number of its devices, fewest first.

    `reference` is the strategy whose rate on `reference_devices` devices is called perfect: `single`, or the
    strategy itself at its smallest size.
    """

    strategy: str
    mark: MarkKind
    reference: str
    reference_devices: int
    points: tuple[ScalingPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scaling:
    """Rates by the number of devices, all else equal.

    With the batch rule `global` all sizes share `batch_size` examples (strong scaling), with `per-replica`
    each replica takes `batch_size` (weak scaling).
    """

    run: str
    workload: str
    shape: str
    kind: Literal["strong", "weak"]
    batch_size: int | None
    lines: tuple[ScalingLine, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkPoint:
    """The rate of a strategy over links of a requested rate in Mbit/s; None for no limit."""

    requested_mbit: float | None
    measured_mbit: Mean | None
    rate: Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLine:
    """A strategy by the rate of its links, slowest first and no limit last."""

    strategy: str
    mark: MarkKind
    can_win: bool
    points: tuple[LinkPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossOver:
    """Two strategies of which one is ahead on slower links, the other on faster ones.

    `at_mbit`: where both would be equal, on a line between the logarithms of their ratios over that of the
    requested rate; None where the faster link has no limit. `is_shown`: the repeats tell the two apart at
    both ends.
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
    """Rates by the rate of links, all else equal, and where the best strategy changes.

    `sentences` say all of it: the crossings, that there are none, or why that is not known.
    """

    run: str
    workload: str
    shape: str
    lines: tuple[LinkLine, ...]
    cross_overs: tuple[CrossOver, ...]
    sentences: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TradeOffPoint:
    """A strategy's rate beside what it sends in a step; `is_bound`: at most that much.

    `on_front`: it may win, and no other that may is as good in both figures and shown by the repeats to be
    better in one.
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
    """Rates against bytes per step: those of TCP where all candidates have them, else the payload."""

    layer: ByteLayer
    points: tuple[TradeOffPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LossCurve:
    """Loss of a case by step: mean over n repeats, None where it is not finite in one of them.

    `at_steps` count from the first step of the warm-up, which is 1. `at_s` is the time that so many steps
    take, mean over repeats: each window's steps at its median, those of the warm-up at the repeat's. `low`
    and `high` are the range over repeats, empty where all agree in five digits.
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
    """Steps of a strategy by round, relative to its own median over all rounds; None without a window."""

    strategy: str
    mark: MarkKind
    n: int
    median_s: float
    relative: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlowestRound:
    """The round in which steps were longest: median over the strategies that had a window in it."""

    repeat: int
    number: int
    relative: float
    n_strategies: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundsOverTime:
    """Windows of all repeats in the order of time.

    `repeats` and `numbers` name each round. `rounds_per_point`: neighbouring rounds of which a point is the
    mean, and the first is named.
    """

    repeats: tuple[int, ...]
    numbers: tuple[int, ...]
    rounds_per_point: int
    lines: tuple[RoundLine, ...]
    slowest: SlowestRound | None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerMemory:
    """Peak resident bytes of each worker: mean over n repeats, and their range, empty where all agree.

    `variable_bytes`: of it in variables and slots; None where that is not stored.
    """

    strategy: str
    n: int
    peak_bytes: Bytes
    low: Bytes
    high: Bytes
    variable_bytes: Bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerBalance:
    """TCP bytes that each task sends and receives in a step, mean over n repeats, and how unequal tasks are.

    Tasks are in plan order, dedicated servers last; variables are known of workers alone. An imbalance is the
    largest task ÷ the mean of all, None where they have nothing.
    """

    strategy: str
    n: int
    sent_bytes: tuple[int, ...]
    received_bytes: tuple[int, ...]
    variable_bytes: Bytes | None
    sent_imbalance: float | None
    received_imbalance: float | None
    variable_imbalance: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """Data of one comparison's charts, as far as its records have it."""

    trade_off: TradeOff | None = None
    losses: tuple[LossCurve, ...] = ()
    rounds: RoundsOverTime | None = None
    memory: tuple[WorkerMemory, ...] = ()
    balance: tuple[ServerBalance, ...] = ()


NO_CURVES = Curves()


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Something that the report could not use: where it stands, and why.

    Attributes:
        is_damage: whether a file is not as it was written, or is gone.
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
    """All strategies on one workload and cluster shape; `rows` are ranked, the unranked last.

    `other_baselines`: strategy → ratios of the others to it, for those that a reader may choose instead.
    `replicas_on_gpus`: replicas on each GPU where some share one, otherwise empty. `notes` are the texts of
    `note_values`, warnings first.
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
    curves: Curves = NO_CURVES
    note_values: tuple[Note, ...] = ()

    @property
    def warnings(self) -> tuple[Note, ...]:
        """Notes that a reader must not miss, the gravest first; the first ones concern different subjects."""
        return tuple(note for note in self.note_values if note.severity == "warning")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Origin of records: a run's name and that of its folder, its facts and its resolved experiment."""

    run: str
    folder: str
    facts: tuple[tuple[str, str], ...]
    experiment: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class FactValue:
    """Value of a fact in `n_records` of a run's records; None for a fact of the run as a whole."""

    text: str
    n_records: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FactDifference:
    """A fact that is not the same in all runs of a report, or in all records of one.

    `values`: for each run in the report's order those that it has there, the commonest first.
    """

    fact: str
    values: tuple[tuple[FactValue, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything a report says; `hints` are what else a reader may want to ask of the same runs."""

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

    def run_in_words(self, run: str) -> str:
        """A run as its readers know it: by its folder, and by its own name; empty where there is no other."""
        if len(self.origins) < 2:
            return ""
        folders = {origin.folder for origin in self.origins if origin.run == run}
        # Copies of one run have its name in several folders.
        folder = folders.pop() if len(folders) == 1 else run
        return run if folder in ("", run) else f"{folder} ({run})"
