"""Record of one case in one repeat, and how far to trust it: a line of `results.jsonl` as frozen values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from harness.records.stability import Stability

SCHEMA = 2
"""Since 2 every record carries its checksum."""

Status = Literal["ok", "failed", "skipped", "implausible"]
StrategyClass = Literal["exact", "bounded", "statistical", "control"]
Scalar = None | bool | int | float | str


@dataclass(frozen=True, kw_only=True, slots=True)
class Failure:
    """Why a case has no result: a kebab-case type, one line, and the stage it happened in."""

    type: str
    message: str
    stage: str


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSeconds:
    """Distribution of step times in all timed windows; `n` steps, the rest in seconds."""

    n: int
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Equivalence:
    """Outcome of the check against the single-device reference, made once per case.

    `equivalent` is null where too little of the model can be judged; `reason` says why it is not true.
    `max_update_error`, `noise_floor` and `tolerance` are those of the decidable variable nearest to its
    limit, relative to its update. `undecidable` names the variables of which rounding alone, or an update
    that never came, leaves nothing to compare.
    `within_bound` says of a compressed strategy, which is not held to being equivalent, whether it lost no
    more than its compressors state.
    `separable` says whether shards mean what the step means on the whole batch, and `separability` why.
    """

    checked: bool
    equivalent: bool | None = None
    within_bound: bool | None = None
    reason: str | None = None
    max_update_error: float | None = None
    noise_floor: float | None = None
    tolerance: float | None = None
    undecidable: tuple[str, ...] = ()
    separable: bool | None = None
    separability: str | None = None
    checked_in_repeat: int | None = None

    @property
    def wrong(self) -> bool:
        """Whether the strategy computes something else than it promises."""
        return self.equivalent is False or self.within_bound is False


@dataclass(frozen=True, kw_only=True, slots=True)
class SavedCheckpoint:
    """What a repeat began with and what it left; steps are counted from the first of all such runs.

    `saved` is relative to the run folder.
    """

    saved: str | None = None
    saved_step: int | None = None
    restored: str | None = None
    restored_step: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedTimes:
    """Where the time of one step went, which was traced after the timed windows; of each worker.

    Every moment counts once: as `compute_s` while any operation computes, else as `transfer_s` while anything
    is on its way, else as `wait_s` while the worker waits for others; what is left of `step_s` is none of
    these. `receiving_s` is all the time in which anything was on its way, also beside computing.
    `received_bytes` are those that TensorFlow tells of, not those of the workers' own ring. `n_transfers`
    came from other workers, in a collective or through the workers' ring, one for each tensor or chunk.
    """

    step_s: tuple[float, ...]
    compute_s: tuple[float, ...]
    transfer_s: tuple[float, ...]
    wait_s: tuple[float, ...]
    receiving_s: tuple[float, ...]
    received_bytes: tuple[int, ...] | None = None
    n_transfers: tuple[int, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Energy:
    """What a step takes in joules.

    `package_j_per_step`: all processor sockets of the workers' hosts together, whatever else they do;
    `why_no_package` where that is not known.
    """

    package_j_per_step: float | None = None
    why_no_package: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuUse:
    """What the GPUs of all workers did in the windows, whoever had them do it; None for what is not counted.

    `busy`: share of the driver's latest sample at the end of each window in which any kernel ran, mean over
    windows and GPUs. `used_bytes`: of the memory of the GPU that has most in use, at the end of any window.
    Bytes were sent. `why_none` where nothing is known of them.
    """

    n_gpus: int = 0
    joules_per_step: float | None = None
    busy: float | None = None
    used_bytes: int | None = None
    link_bytes_per_step: float | None = None
    pcie_bytes_per_step: float | None = None
    why_none: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ObserverEffect:
    """Mean step of windows with all instruments and of windows without, in pairs, in seconds.

    `why_none` where there are no such windows though they were asked for.
    """

    with_s: tuple[float, ...] = ()
    without_s: tuple[float, ...] = ()
    why_none: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredLink:
    """Limit of one worker's link, and what TCP carried over it before the case, in Mbit/s.

    `sent_mbit` went to the next worker, `received_mbit` came from the one before; each is as slow as the
    slower of the two links on its way.
    """

    requested_mbit: float | None = None
    burst_bytes: int | None = None
    sent_mbit: float | None = None
    received_mbit: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """Rate asked of the links between workers and the slowest that was measured, in Mbit/s.

    `workers`: each of them in worker order; None where no link is limited.
    """

    requested_mbit: float | None = None
    measured_mbit: float | None = None
    workers: tuple[MeasuredLink, ...] | None = None

    @property
    def asked(self) -> tuple[object, ...]:
        """What must be equal for two records to be of the same links."""
        limits = [(each.requested_mbit, each.burst_bytes) for each in self.workers or ()]
        return (self.requested_mbit, *limits)

    def wire_s(self, matrix: Sequence[Sequence[float | None]]) -> float | None:
        """Seconds that the bytes of a step take on the busiest link, whose two directions carry at once.

        Args:
            matrix: bytes from task i to task j.
        Returns:
            None where no link was measured.
        """
        spent_s: list[float] = []
        for worker, link in enumerate(self.workers or ()):
            if worker < len(matrix):
                sent_bytes = sum(value or 0.0 for value in matrix[worker])
                received_bytes = sum(line[worker] or 0.0 for line in matrix)
                for n_bytes, mbit in ((sent_bytes, link.sent_mbit), (received_bytes, link.received_mbit)):
                    spent_s += [] if mbit is None else [n_bytes * 8 / (mbit * 1e6)]
        return max(spent_s, default=None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rounds:
    """Windows of a repeat, which the cases of a block took in turn.

    `block` is equal for the records whose windows of one number belong to one round. `n_steps` are counted in
    each window, after `n_lead` that are not; `n_made` are all steps after the warm-up. `step_s` holds the
    median step of each window, `baseline_step_s` those of the baseline's case, `baseline`, in the same
    rounds, as far as it took part; its own record may tell of other ones. `first_worker` is the one of the
    site's workers that the case's first ran on.
    """

    block: str
    n_steps: int
    n_lead: int
    n_made: int
    step_s: tuple[float, ...]
    first_worker: int = 0
    baseline: str | None = None
    baseline_step_s: tuple[float, ...] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """How the case was measured: what must be equal for two records to be comparable.

    `until_ci` is how closely ratios were to be known before there were repeats enough; None where their
    number was fixed. What is measured does not depend on it.
    """

    seed: int
    steps: int
    warmup_rule: str
    interleave: bool
    batch_rule: str
    cores_per_worker: float | None = None
    memory_per_worker_bytes: int | None = None
    pinned: bool | None = None
    sparse_duplicates: str = "merged"
    rounds: int | None = None
    window_s: float | None = None
    until_ci: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Facts about the host that do not change between runs, unless somebody changes its settings.

    `governor` sets the clock of its cores, `powersave` for example, where all have the same; `turbo`: whether
    they may run above their rated clock; `hyper_threads`: whether two of them share one core.
    """

    cpu_model: str | None = None
    n_cores: int | None = None
    memory_bytes: int | None = None
    kernel: str | None = None
    architecture: str | None = None
    governor: str | None = None
    turbo: bool | None = None
    hyper_threads: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """What code produced the record.

    `files`: reference to a user's own workload, strategy or plan → hash of the file.
    """

    git_sha: str | None = None
    git_dirty: bool | None = None
    lock_hash: str | None = None
    image_digest: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str | None] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One case and repeat. Field names are the contract's; missing is None, never -1 or 0.

    Bytes are sums of what all workers sent, per step; `tcp_matrix` holds bytes per step from task i to
    task j, tasks in plan order and dedicated servers last; seconds and bytes carry their unit in the name.
    `is_twin`: the baseline, timed once more under a name of its own, which is never a candidate.
    `exposed`: strangers on the network could reach the servers of the run.
    `variable_bytes` are those of variables and slots in the memory of each worker, a server's with it.
    `cpu_s_per_step`: processor time of each worker's process with all its threads, updates that end after
    their window left out.
    `gpus`: what those of all workers did; None where the case uses none.
    `observer`: what measuring takes, by further windows; None where nobody asked.
    `price_per_hour`: of all its workers together, in whatever currency the experiment's prices are.
    `warnings`: why the case is not what its strategy is chosen for, and what to choose instead.
    `file_checksums`: name of a file in the repeat's folder → hash of its bytes.
    `payload_is_bound`: the payload is the most that can move, since the rows of sparse gradients vary.
    `wire_s`: what the payload takes on the busiest of the measured links, pushes and pulls one after the
    other where a step waits for both.
    `hosts`: number of the machine of each worker; bytes between different ones leave their machine.
    `gradient_bytes`: of one replica's dense gradients as they are in memory; None where some are sparse.
    """

    run: str
    case: str
    repeat: int
    order: int
    workload: str
    strategy: str
    strategy_class: StrategyClass
    provider: str
    device: str
    workers: int
    replicas: int
    status: Status
    schema: int = SCHEMA
    experiment: str | None = None
    spec_hash: str | None = None
    control: bool = False
    is_twin: bool = False
    workload_params: Mapping[str, Scalar] = field(default_factory=dict)
    strategy_params: Mapping[str, Scalar] = field(default_factory=dict)
    batch_size: int | None = None
    exposed: bool | None = None
    error: Failure | None = None
    examples_per_s: float | None = None
    step_s: StepSeconds | None = None
    warmup_steps: int | None = None
    rounds: Rounds | None = None
    stability: Stability | None = None
    cpu_s_per_step: tuple[float, ...] | None = None
    energy: Energy | None = None
    gpus: GpuUse | None = None
    observer: ObserverEffect | None = None
    price_per_hour: float | None = None
    payload_bytes_per_step: float | None = None
    payload_is_bound: bool | None = None
    wire_s: float | None = None
    gradient_bytes: int | None = None
    tcp_bytes_per_step: float | None = None
    resent_bytes_per_step: float | None = None
    interface_bytes_per_step: float | None = None
    tcp_matrix: tuple[tuple[float | None, ...], ...] | None = None
    hosts: tuple[int, ...] | None = None
    exposed_comm_s: float | None = None
    traced_step: TracedTimes | None = None
    codec_s: float | None = None
    transform_s: float | None = None
    import_s: float | None = None
    provision_s: float | None = None
    nodes_before: int | None = None
    nodes_after: int | None = None
    peak_rss_bytes: tuple[int | None, ...] | None = None
    variable_bytes: tuple[int, ...] | None = None
    loss: tuple[float | None, ...] | None = None
    equivalence: Equivalence | None = None
    link: Link | None = None
    checkpoint: SavedCheckpoint | None = None
    plausibility: str | None = None
    notes: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    started_utc: str | None = None
    wall_s: float | None = None
    method: Method | None = None
    machine: Machine | None = None
    provenance: Provenance | None = None
    comparison_key: str | None = None
    file_checksums: Mapping[str, str] = field(default_factory=dict)

    @property
    def median_examples_per_s(self) -> float | None:
        """Examples per second of the median step, which is what a person is shown as the rate.

        `examples_per_s` is that of all windows, in which one stall weighs as much as it took.
        """
        median_s = self.step_s.p50 if self.step_s else None
        if not median_s or not self.batch_size or median_s < 0 or self.batch_size < 0:
            return None
        return self.batch_size / median_s

    @property
    def cost_per_million_examples(self) -> float | None:
        """Price of its workers for the time in which they take a million examples, by the median step."""
        rate = self.median_examples_per_s
        if self.price_per_hour is None or not rate:
            return None
        return self.price_per_hour / 3600 / rate * 1e6
