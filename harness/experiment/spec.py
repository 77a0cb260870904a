"""An experiment as frozen values: what to run, where, and how to measure it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from harness.cluster.connection import NO_CLUSTER, Connection
from harness.cluster.link_limits import WorkerLinks
from harness.experiment.references import Scalar, StrategyRef, WorkloadRef
from harness.records.facts.circumstances import AS_WRITTEN
from strategies.plan.faults import Fault

if TYPE_CHECKING:
    from harness.cluster.providers import Device

BatchRule = Literal["global", "per-replica"]
Goal = Literal["fastest", "cheapest", "network"]
Precision = Literal["float32", "bfloat16", "float16"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Computation:
    """How a case's steps compute.

    Args:
        xla: whether XLA compiles what each worker computes.
        tf32: whether timed steps may round products of float32 to TensorFloat-32; None beside GPUs, which
            alone have it.
    """

    precision: Precision = AS_WRITTEN
    xla: bool = False
    tf32: bool | None = None

    def __str__(self) -> str:
        """What is not as usual of it, in a word or two; empty where all is."""
        precision = [] if self.precision == AS_WRITTEN else [self.precision]
        return " ".join([*precision, *["XLA"] * self.xla, *["TF32 off"] * (self.tf32 is False)])


AS_USUAL = Computation()


@dataclass(frozen=True, kw_only=True, slots=True)
class Scenario:
    """What goes wrong with the workers of a case, under a name; usually nothing."""

    name: str = ""
    faults: tuple[Fault, ...] = ()


NO_FAULTS = Scenario()
InputRule = Literal["staged", "pipeline"]
USUAL_ROUNDS = 10
USUAL_WINDOW_S = 0.2
SHAPE_KEYS: Mapping[str, str] = {
    "provider": "provider",
    "workers": "workers",
    "replicas_per_worker": "replicas_per_worker",
    "device": "device",
    "cores_per_worker": "cores_per_worker",
    "memory_bytes": "memory_per_worker",
    "image": "image",
}
"""Field of a `ClusterShape` → its key in the file's `cluster` section; links have a section of their own,
and `share_gpus` is the same for all cases."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClusterSpec:
    """What cases have of each field of a `ClusterShape`: a sweep of one value or more."""

    provider: tuple[str, ...]
    workers: tuple[int, ...]
    replicas_per_worker: tuple[int, ...]
    device: tuple[Device, ...]
    cores_per_worker: tuple[int, ...]
    memory_bytes: tuple[int, ...]
    image: tuple[str | None, ...]
    rate_mbit: tuple[float | None, ...]
    burst_kb: tuple[int | None, ...] = (None,)
    worker_links: tuple[WorkerLinks, ...] = ((),)
    share_gpus: tuple[bool, ...] = (False,)

    @property
    def shapes_links(self) -> bool:
        """Whether the link of any worker of any case is limited."""
        (different,) = self.worker_links
        return any(rate is not None for rate in (*self.rate_mbit, *(link.rate_mbit for _, link in different)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Until:
    """When there are repeats enough.

    Args:
        ratio_ci: how far each limit of a ratio's interval may be from the ratio, as a share of it.
        at_most_s: nothing is begun that would end later than so many seconds after the run's start.
    """

    ratio_ci: float
    at_most_s: float


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure:
    """How each case is timed.

    Args:
        warmup_steps: None means detected.
        steps: counted ones that a repeat has at least, in all rounds together.
        rounds: of a repeat, in each of which every case takes a window.
        window_s: how long a window shall be; 0 for no longer than its share of `steps`.
        interleave: whether cases take their windows in turn; else each is timed by itself.
        trace: whether a traced step is made after the last window.
        until: more repeats are made until that; None makes `repeats`.
        aa: whether the baseline is timed once more, under a name of its own.
        observer: whether it is measured what measuring takes.
        exposed_comm: whether the control runs too where it is not among the strategies.
        evaluate: whether the workload is asked how good the model is after the last step.
        precision: types that steps compute in; a sweep of one or more.
        xla: whether XLA compiles them; a sweep.
        tf32: whether those on GPUs may round products to TensorFloat-32, as TensorFlow does by default; a
            sweep.
        input: where timed steps take their batches from: memory, or the dataset's own pipeline as it runs.
    """

    warmup_steps: int | None
    steps: int
    repeats: int
    interleave: bool
    seed: int
    batch: BatchRule
    trace: bool = True
    rounds: int = USUAL_ROUNDS
    window_s: float = USUAL_WINDOW_S
    until: Until | None = None
    aa: bool = False
    observer: bool = False
    exposed_comm: bool = False
    evaluate: bool = False
    precision: tuple[Precision, ...] = (AS_WRITTEN,)
    xla: tuple[bool, ...] = (False,)
    tf32: tuple[bool, ...] = (True,)
    input: InputRule = "staged"

    @property
    def n_rounds(self) -> int:
        """Rounds of a repeat: as many as asked for, and no more than steps."""
        return min(self.rounds, self.steps)

    @property
    def computations(self) -> Sequence[Computation]:
        """Every combination of the sweeps of how steps compute."""
        return [
            Computation(precision=precision, xla=xla, tf32=tf32)
            for precision, xla, tf32 in itertools.product(self.precision, self.xla, self.tf32)
        ]

    def of_one(self, computation: Computation) -> Measure:
        """The same for cases of one computation alone."""
        tf32 = self.tf32 if computation.tf32 is None else (computation.tf32,)
        return replace(self, precision=(computation.precision,), xla=(computation.xla,), tf32=tf32)


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseFilter:
    """What a case must have to match; None matches all, parameters given must be among the case's.

    Args:
        shape: field of its `ClusterShape` → value.
        scenario: name of its scenario.
    """

    workload: WorkloadRef | None = None
    strategy: StrategyRef | None = None
    shape: tuple[tuple[str, Scalar], ...] = ()
    scenario: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoints:
    """Whether each repeat's last state is saved, and the checkpoint that all repeats begin with, if any."""

    save: bool = False
    restore: Path | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ExperimentSpec:
    """A resolved experiment.

    Args:
        scenarios: faults of workers; each case is run in every one.
        baseline: the strategy that others are compared with; one of `strategies`.
        goal: what the report's headline answers.
        connection: to the Ray cluster of the cluster provider.
        prices: device → price of one worker for an hour, in any currency; in the order of `cluster.device`.
        notes: one line each, what resolving changed and the person should know; not part of the experiment.
    """

    name: str
    workloads: tuple[WorkloadRef, ...]
    strategies: tuple[StrategyRef, ...]
    cluster: ClusterSpec
    measure: Measure
    include: tuple[CaseFilter, ...]
    exclude: tuple[CaseFilter, ...]
    baseline: StrategyRef
    checkpoint: Checkpoints = Checkpoints()
    scenarios: tuple[Scenario, ...] = (NO_FAULTS,)
    connection: Connection = NO_CLUSTER
    prices: tuple[tuple[Device, float], ...] = ()
    notes: tuple[str, ...] = ()
    goal: Goal = "fastest"

    def price_per_hour(self, device: Device) -> float | None:
        """Price of one worker with a device; None where nobody gave it."""
        return dict(self.prices).get(device)
