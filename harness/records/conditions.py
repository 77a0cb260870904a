"""Conditions of a repeat: method, machine and code."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

AS_WRITTEN: Final = "float32"
"""Precision of steps that compute in their author's dtypes, whatever these are."""

Placement: TypeAlias = Literal["device", "host", "mixed"]
"""Memory of the staged batches of replicas on GPUs: the GPUs', the host's, or some parts in each."""

BatchRule: TypeAlias = Literal["global", "per-replica"]
"""Rule of batch sizes: a batch of all replicas together, or of each."""

TimedUnit: TypeAlias = Literal["step", "period", "window"]
"""Unit of timing: each step; a period, if workers wait for each other in one of its steps only; or a window,
if they do not wait.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """Method of a measurement; only records of equal methods can be compared.

    The defaults are for records that are older than the field.

    Attributes:
        until_ci: goal for the intervals of ratios, as a fraction of the ratio; None for a fixed number of
            repeats. The figures do not depend on it.
        precision: dtype of the computation.
        xla: True if XLA compiled the steps.
        tf32: True if GPUs could round float32 products to TensorFloat-32; None on other devices or if
            unknown.
        input: source of the timed steps' batches: memory, or the dataset's own pipeline.
        input_placement: memory of the batches before a step; None if replicas had no GPUs.
        freed_memory: treatment of freed memory: workers kept it, or returned it to the system.
        replicas_on_gpus: number of replicas on each GPU if some shared one; else empty.
        sparse_duplicates: treatment of rows of sparse gradients with equal ids: `kept`, `merged` or
            `merged (linear)`; None without such gradients or without a plan.
        faults: faults injected into workers, such as `worker 2: sign-flip scale=10`.
        scenario: name of these faults in the experiment.
        timed_unit: unit whose mean step on its slowest worker is one value.
    """

    seed: int
    steps: int
    warmup_rule: str
    interleave: bool
    batch_rule: BatchRule
    cores_per_worker: float | None = None
    memory_per_worker_bytes: int | None = None
    pinned: bool | None = None
    sparse_duplicates: str | None = "merged"
    rounds: int | None = None
    window_s: float | None = None
    until_ci: float | None = None
    precision: str = AS_WRITTEN
    xla: bool = False
    tf32: bool | None = None
    input: Literal["staged", "pipeline"] = "staged"
    input_placement: Placement | None = None
    freed_memory: Literal["returned", "kept"] = "returned"
    scenario: str = ""
    faults: tuple[str, ...] = ()
    replicas_on_gpus: tuple[int, ...] = ()
    timed_unit: TimedUnit = "step"


def global_examples(batch_size: int, rule: BatchRule, n_replicas: int) -> int:
    """Examples in a step of all replicas, for a batch size under a rule."""
    return batch_size * n_replicas if rule == "per-replica" else batch_size


def requested_batch(n_examples: int, rule: BatchRule, n_replicas: int) -> int:
    """Batch size under a rule, for the examples in a step of all replicas."""
    return n_examples // global_examples(1, rule, n_replicas)


def sharing_text(replicas_on_gpus: Sequence[int]) -> str:
    """Text on replicas that share GPUs, as in `3 replicas share 2 GPUs`; empty if none do."""
    if not replicas_on_gpus:
        return ""
    n_gpus = len(replicas_on_gpus)
    return f"{sum(replicas_on_gpus)} replicas share {n_gpus} GPU{'s' * (n_gpus > 1)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSize:
    """Size of the captured model; it shows whether a workload has been edited.

    Attributes:
        variable_bytes: bytes of one copy of all variables: trained ones, optimizer slots and other state.
        flops_per_example: figure stated by the workload.
    """

    n_variables: int
    variable_bytes: int
    flops_per_example: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuFacts:
    """A kind of GPU, and its software as far as it affects results.

    Attributes:
        cuda, cudnn: versions of the libraries that workers have loaded; if these do not report one, those
            that TensorFlow was built for.
    """

    model: str | None = None
    driver: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    power_limit_w: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Facts about the host that change between runs only with its settings.

    Attributes:
        governor: clock governor common to all cores, such as `powersave`.
        turbo: True if cores may exceed their rated clock. hyper_threads: True if two logical cores share one.
        gpus: kinds of the workers' GPUs, each once; None without GPUs.
    """

    cpu_model: str | None = None
    n_cores: int | None = None
    memory_bytes: int | None = None
    kernel: str | None = None
    architecture: str | None = None
    governor: str | None = None
    turbo: bool | None = None
    hyper_threads: bool | None = None
    gpus: tuple[GpuFacts, ...] | None = None


def short_hash(sha: str) -> str:
    """Abbreviated hash of a commit or a file."""
    return sha[:10]


@dataclass(frozen=True, kw_only=True, slots=True)
class Repository:
    """Commit of the git repository that holds a user's file.

    Attributes:
        name: name of the repository's folder.
        git_dirty: True if the file, or any tracked file, differs from the commit.
    """

    name: str
    git_sha: str | None = None
    git_dirty: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """Code that produced the record.

    Attributes:
        lock_hash: hash of the lock file that the workers' environment was installed from.
        git_sha, git_dirty: commit and state of stratbench's own checkout.
        workload: repository of the workload's file; None without one, or if shipped with stratbench.
        files: reference to a user's own workload, strategy or plan → hash of the file.
    """

    git_sha: str | None = None
    git_dirty: bool | None = None
    lock_hash: str | None = None
    image_digest: str | None = None
    workload: Repository | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str | None] = field(default_factory=dict)
