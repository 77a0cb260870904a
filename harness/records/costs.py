"""Costs of a step: its time by cause, energy, GPUs, links, and the cost of measuring itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

INPUT_BOUND_SHARE = 0.10
"""Share of steps' time spent waiting for input at which a case counts as input-bound."""
HOST_BOUND_SHARE = 0.50
"""Share of a traced GPU step in which only the host is busy, above which a case counts as host-bound."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedTimes:
    """Time of one traced step by cause, for each worker; traced after the timed windows.

    Each moment counts once: as `compute_s` while any operation computes, else as `transfer_s` during any
    transfer, else as `host_s` while the host of GPUs is busy, else as `wait_s` while the worker waits for
    others; the rest of `step_s` is none of these. The host comes before waiting because it hides no wait:
    operations that wait, for others or for a GPU, do not count as busy.

    On GPUs, operations compute while their kernels run, and transfers include copies from, to and between a
    worker's GPUs.

    Attributes:
        copy_s: time in which only such copies were under way. host_s: time in which the host runs operations
            itself or launches kernels. Both are None without GPUs.
        host_bound: True if the host, not the GPUs, limits the step.
        receiving_s: time of all transfers from other workers, also during compute.
        received_bytes: bytes reported by TensorFlow, without those of the workers' own ring.
        n_transfers: tensors or chunks received from other workers, by collectives or by the workers' ring.
    """

    step_s: tuple[float, ...]
    compute_s: tuple[float, ...]
    transfer_s: tuple[float, ...]
    wait_s: tuple[float, ...]
    receiving_s: tuple[float, ...]
    received_bytes: tuple[int, ...] | None = None
    n_transfers: tuple[int, ...] | None = None
    copy_s: tuple[float, ...] | None = None
    host_s: tuple[float, ...] | None = None
    host_bound: bool = False

    @property
    def compute_share(self) -> float:
        return sum(self.compute_s) / sum(self.step_s)

    def is_host_bound(self, median_s: float | None) -> bool:
        """True if the host, not the GPUs, limits the step.

        Args:
            median_s: median seconds of an untraced step. Tracing slows the host, which does not limit the
                case if GPUs are busy for most of such a step.
        """
        if self.host_s is None or median_s is None:
            return False
        busy_s = (sum(self.compute_s) + sum(self.transfer_s)) / len(self.step_s)
        return (
            sum(self.host_s) > HOST_BOUND_SHARE * sum(self.step_s)
            and busy_s < (1 - HOST_BOUND_SHARE) * median_s
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class PassCost:
    """Time of one pass over a worker's graph, and the nodes of the graph after it."""

    name: str
    seconds: float
    nodes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Energy:
    """Energy of a step in joules.

    Attributes:
        package_j_per_step: all processor sockets of the workers' hosts, other programs included; None if
            unknown, for the reason in `why_no_package`.
    """

    package_j_per_step: float | None = None
    why_no_package: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuUse:
    """Use of all workers' GPUs in the windows, by any program; None for figures that are not counted.

    Attributes:
        busy: share of the time in which any kernel ran, in samples of the driver at least half within
            windows.
        own_bytes: most memory of a worker's process on one GPU at the end of a window.
        peak_bytes: most memory that TensorFlow's allocator gave out on one GPU during the windows, without
            the check and the warm-up.
        link_bytes_per_step, pcie_bytes_per_step: bytes sent.
        why_none: reason if nothing is known. why_no: field that is None → reason.
    """

    n_gpus: int = 0
    joules_per_step: float | None = None
    busy: float | None = None
    own_bytes: int | None = None
    link_bytes_per_step: float | None = None
    pcie_bytes_per_step: float | None = None
    why_none: str | None = None
    peak_bytes: int | None = None
    why_no: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class ObserverEffect:
    """Mean step time in pairs of windows, with and without timing of each step, in seconds.

    Attributes:
        why_none: reason why requested windows are missing. failed: True if one of them was begun.
    """

    with_s: tuple[float, ...] = ()
    without_s: tuple[float, ...] = ()
    why_none: str | None = None
    failed: bool = False


LONG_PREPARATION_S = 30.0
"""Preparation that takes longer is explained to the user."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preparation:
    """Seconds before the first timed step of a repeat.

    Attributes:
        capture_s: capture of the workload and its check, once for all repeats that share it.
        reference_s: reference and other checks before workers start, also once for these repeats.
        limit_s: time limit of these two together.
        start_s: processes, programs, variables and batches of this repeat.
        check_s: check of its workers; None if an earlier repeat was checked.
        warmup_s: steps until step times settle.
    """

    capture_s: float
    reference_s: float
    limit_s: float
    start_s: float
    check_s: float | None
    warmup_s: float

    @property
    def total_s(self) -> float:
        return self.capture_s + self.reference_s + self.start_s + (self.check_s or 0.0) + self.warmup_s


@dataclass(frozen=True, kw_only=True, slots=True)
class InputWait:
    """Time that counted steps wait for a batch of the input pipeline, in seconds.

    Attributes:
        mean: mean over timed units of the longest wait of a worker. share: its part of the steps' time.
        mean_of_workers: mean of each worker.
        bound: True if the share is large enough to hide differences of strategies.
    """

    mean: float
    share: float
    mean_of_workers: tuple[float, ...]
    bound: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredLink:
    """Limit of one worker's link, and TCP's rate over it before the case, in Mbit/s.

    Attributes:
        sent_mbit: rate to the next worker. received_mbit: rate from the previous one. Each is limited by the
            slower of two links.
    """

    requested_mbit: float | None = None
    burst_bytes: int | None = None
    sent_mbit: float | None = None
    received_mbit: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Link:
    """Requested rate of the links between workers, and the slowest measured one, in Mbit/s.

    Attributes:
        workers: link of each worker; None if no link is limited.
    """

    requested_mbit: float | None = None
    measured_mbit: float | None = None
    workers: tuple[MeasuredLink, ...] | None = None

    @property
    def requested_limits(self) -> tuple[object, ...]:
        """Limits that must be equal for two records' links to be the same."""
        limits = [(worker.requested_mbit, worker.burst_bytes) for worker in self.workers or ()]
        return (self.requested_mbit, *limits)

    def wire_s(self, traffic: Sequence[tuple[float, float]]) -> float | None:
        """Seconds for the bytes of a step on the busiest link, which sends and receives at the same time.

        Args:
            traffic: bytes that each worker sends and receives.
        Returns:
            None if no link was measured.
        """
        spent_s: list[float] = []
        for (sent_bytes, received_bytes), link in zip(traffic, self.workers or (), strict=False):
            for n_bytes, mbit in ((sent_bytes, link.sent_mbit), (received_bytes, link.received_mbit)):
                spent_s += [] if mbit is None else [n_bytes * 8 / (mbit * 1e6)]
        return max(spent_s, default=None)
