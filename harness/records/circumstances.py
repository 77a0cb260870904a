"""Circumstances of a repeat: method, machine and code."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

AS_WRITTEN: Final = "float32"
"""Precision of steps that are left as their author wrote them, whatever types these compute in."""

Placement: TypeAlias = Literal["device", "host", "mixed"]
"""Memory of the staged batches of replicas on GPUs: the GPUs', the host's, or some parts in each."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Method:
    """Method of a measurement, which must be equal for two records to be comparable.

    `until_ci` is how closely ratios were to be known before there were repeats enough; None where their
    number was fixed. What is measured does not depend on it. `precision` is the type that steps computed in,
    `xla` whether XLA compiled them, `tf32` whether products of float32 on GPUs could round to TensorFloat-32,
    None on other devices and before that was recorded, `input` where timed steps took their batches from:
    memory, or the dataset's own pipeline, `input_placement` the memory that these lay in before a step, None
    where replicas had no GPUs, `freed_memory` whether workers kept the memory of tensors that were gone, or
    returned it and had new pages for the next ones. `replicas_on_gpus` counts those on each GPU where some
    shared one, and is empty where each had its own. `sparse_duplicates` says what became of rows of sparse
    gradients that have the same id: `kept`, `merged` or `merged (linear)`, None without such gradients or
    without a plan. `faults` are those put into workers, each as `worker 2: sign-flip scale=10`, and
    `scenario` what the experiment calls them. Defaults are how records are read from before a field could be
    chosen.
    """

    seed: int
    steps: int
    warmup_rule: str
    interleave: bool
    batch_rule: str
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


def sharing_text(replicas_on_gpus: Sequence[int]) -> str:
    """Text on replicas that share GPUs, as in `3 replicas share 2 GPUs`; empty where each has its own."""
    if not replicas_on_gpus:
        return ""
    n_gpus = len(replicas_on_gpus)
    return f"{sum(replicas_on_gpus)} replicas share {n_gpus} GPU{'s' * (n_gpus > 1)}"


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelSize:
    """Size of the captured model, by which an edited workload is distinguished from what it was.

    Variables are all that a step has: trained ones, slots of optimizers and other state. `variable_bytes` are
    those of one copy, `flops_per_example` is what the workload states.
    """

    n_variables: int
    variable_bytes: int
    flops_per_example: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuFacts:
    """A kind of GPU and its software, as far as they change results.

    `cuda` and `cudnn` are the versions of the libraries that workers have loaded, or, where these do not
    answer, those that TensorFlow was built for.
    """

    model: str | None = None
    driver: str | None = None
    cuda: str | None = None
    cudnn: str | None = None
    power_limit_w: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Machine:
    """Facts about the host that do not change between runs, unless its settings are changed.

    `governor` sets the clock of its cores, `powersave` for example, where all have the same; `turbo`: whether
    they may run above their rated clock; `hyper_threads`: whether two of them share one core. `gpus`: each
    kind of the workers' GPUs once; None without any.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class Repository:
    """Commit of the git repository that holds a user's file.

    `name` is that of the repository's folder. `git_dirty`: the file is not committed as it is, or
    another file that git knows has changed.
    """

    name: str
    git_sha: str | None = None
    git_dirty: bool | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Provenance:
    """Code that produced the record.

    `lock_hash` is that of the lock file which the workers' environment was installed from. `git_sha` and
    `git_dirty` are of stratbench's own checkout; `workload` is the repository of the workload's
    file, None where that is in none or shipped with stratbench. `files`: reference to a user's own workload,
    strategy or plan → hash of the file.
    """

    git_sha: str | None = None
    git_dirty: bool | None = None
    lock_hash: str | None = None
    image_digest: str | None = None
    workload: Repository | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str | None] = field(default_factory=dict)
