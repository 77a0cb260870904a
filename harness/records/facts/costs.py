"""What a step costs: where its time went, energy, GPUs, and what measuring itself takes."""

from collections.abc import Mapping
from dataclasses import dataclass, field

INPUT_BOUND_SHARE = 0.10
"""Of steps' time that goes into waiting for input, from which on a case is bound by it."""


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
class PassCost:
    """What one pass over a worker's graph took, and the nodes of the graph after it."""

    name: str
    seconds: float
    nodes: int


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

    `busy`: share of the time in which any kernel ran, by the driver's samples at least half of which lie
    within windows. Of a GPU's memory, `own_bytes` are the most that a worker's process held at the end of a
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


@dataclass(frozen=True, kw_only=True, slots=True)
class InputWait:
    """How long counted steps wait until they have their batch of a pipeline, in seconds.

    `mean` is that of the worker that waits longest in a step, and `share` its part of the steps' time;
    `mean_of_workers` is that of each. `bound`: the share is so large that it hides what strategies differ in.
    """

    mean: float
    share: float
    mean_of_workers: tuple[float, ...]
    bound: bool
