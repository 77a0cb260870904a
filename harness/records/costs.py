"""Costs of a step: its time by cause, energy, GPUs, links, and the cost of measuring itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

INPUT_BOUND_SHARE = 0.10
"""Share of steps' time spent waiting for input from which on a case is input-bound."""
HOST_BOUND_SHARE = 0.50
"""Share of a traced step on GPUs in which only its host is busy, above which a case is bound by that."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TracedTimes:
    """Time of one traced step by cause, for each worker; traced after the timed windows.

    Every moment counts once: as `compute_s` while any operation computes, else as `transfer_s` while
    anything is on its way, else as `host_s` while the host of GPUs is busy, else as `wait_s` while the worker
    waits for others; the rest of `step_s` is none of these. The host comes before waiting because it
    hides no wait: an operation that waits, for others or for a GPU, does not keep it busy.

    On GPUs, operations compute while their kernels run. `transfer_s` then includes copies from, to and
    between a worker's GPUs; `copy_s` is the part of it in which nothing else was on its way. `host_s` is the
    time in which the host runs operations itself or launches kernels. Both are None without GPUs.
    `host_bound`: the host limits the step, not the GPUs.

    `receiving_s` is all the time in which anything came from others, also beside computing.
    `received_bytes` are those that TensorFlow reports, not those of the workers' own ring. `n_transfers`
    came from other workers, in a collective or through the workers' ring, one for each tensor or chunk.
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
        """Decide between host and GPUs.

        Args:
            median_s: of a step that is not traced. Tracing slows the host, which does not limit the case if
                GPUs are busy for most of such a step.
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

    `package_j_per_step`: all processor sockets of the workers' hosts together, whatever else they do;
    `why_no_package` where that is not known.
    """

    package_j_per_step: float | None = None
    why_no_package: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuUse:
    """Use of all workers' GPUs in the windows, by any program; None for figures that are not counted.

    `busy`: share of the time in which any kernel ran, by the driver's samples at least half within
    windows. Of a GPU's memory, `own_bytes` are the most that a worker's process held at the end of a
    window, and `peak_bytes` the most that TensorFlow's allocator gave out at any moment of the windows; the
    check and the warm-up are not in it. Other bytes were sent. `why_none` where nothing is known of them,
    `why_no`: field that is None → reason.
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
    """Mean step of windows in which each step is timed and kept, and of others, in pairs, in seconds.

    `why_none` where there are no such windows though they were asked for; `failed` where one was begun.
    """

    with_s: tuple[float, ...] = ()
    without_s: tuple[float, ...] = ()
    why_none: str | None = None
    failed: bool = False


LONG_PREPARATION_S = 30.0
"""Preparation from which on a person wants to know what took so long."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Preparation:
    """Seconds before the first timed step of a repeat.

    Attributes:
        capture_s: capture of the workload and its check, once for all repeats that share it.
        reference_s: reference and other checks before workers begin, once for all repeats too.
        limit_s: for these two together.
        start_s: processes, programs, variables and batches of this repeat.
        check_s: check of its workers; None if an earlier repeat was checked.
        warmup_s: steps until their times settle.
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
    """Time that counted steps wait for their batch of a pipeline, in seconds.

    `mean` is that of the worker that waits longest in a step, and `share` its part of the steps' time;
    `mean_of_workers` is that of each. `bound`: the share is so large that it hides what strategies differ in.
    """

    mean: float
    share: float
    mean_of_workers: tuple[float, ...]
    bound: bool


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasuredLink:
    """Limit of one worker's link, and what TCP carried over it before the case, in Mbit/s.

    `sent_mbit` went to the next worker, `received_mbit` came from the previous one; each is limited by the
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
    def requested_limits(self) -> tuple[object, ...]:
        """Limits that must be equal for two records to be of the same links."""
        limits = [(worker.requested_mbit, worker.burst_bytes) for worker in self.workers or ()]
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
