"""What charts are drawn of, beside the rows: curves over sizes, links, steps and rounds, and trade-offs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from reports.rows.evidence import MarkKind, Mean
from reports.statistics import Estimate

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
    """What the charts of one comparison are drawn of, as far as its records have it."""

    trade_off: TradeOff | None = None
    losses: tuple[LossCurve, ...] = ()
    rounds: RoundsOverTime | None = None
    memory: tuple[WorkerMemory, ...] = ()
    balance: tuple[ServerBalance, ...] = ()


NO_CURVES = Curves()
