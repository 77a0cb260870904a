"""A strategy on one workload and cluster shape, and what its repeats show."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from reports.rows.evidence import Mark, Mean, PassRow, Placement, TraceFile
from reports.statistics import Estimate, Ratio

RowStatus = Literal["ok", "failed", "skipped", "implausible"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Repeats of one case without a usable result, all for the same reason.

    `log` are the last lines of the worker's log that tells most of it, `log_path` its name in the run folder.
    `run` is the name of that run, where a report is of several.
    """

    workload: str
    shape: str
    strategy: str
    repeats: tuple[int, ...]
    status: RowStatus
    type: str
    stage: str
    message: str
    log_path: str | None = None
    log: tuple[str, ...] = ()
    run: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeries:
    """Step times of one repeat, slowest worker of each step, in the order they ran, without those that lead
    into windows.

    `seconds[:n_warmup]` is the warm-up that no figure uses. `thinned_from` is the number of steps before
    thinning for display, or None when all are here.
    """

    repeat: int
    p50: float | None
    seconds: tuple[float, ...]
    n_warmup: int
    thinned_from: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSplit:
    """Where the time of a traced step went, mean over its workers; bytes of all workers together.

    Every moment counts once, as the first of computing, transfer, host, waiting and rest that it is;
    `receiving_s` is transfer from others beside computing too, and `hidden_share` the part of it that is.
    `copy_s`, the part of the transfer within workers, and `host_s` are None without GPUs. `n_transfers` of
    all workers together. Bytes per second of the transfer, of the worker that is longest at it:
    `algorithm_bytes_per_s` of one replica's gradients, `bus_bytes_per_s` of what its busiest link carries one
    way, as the NCCL tests define both.
    """

    step_s: Mean
    compute_s: Mean
    transfer_s: Mean
    wait_s: Mean
    rest_s: Mean
    receiving_s: Mean
    hidden_share: Mean | None
    received_bytes: Mean | None
    n_transfers: Mean | None
    algorithm_bytes_per_s: Mean | None
    bus_bytes_per_s: Mean | None
    copy_s: Mean | None
    host_s: Mean | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopResharding:
    """Resharding of variables in a run of the host loop on average.

    `reshards`, `shards` and `unshards` are those of a replica, `sent_bytes` those of all together;
    `whole_bytes` and `kept_bytes` are what variables that lie in parts take of a replica's memory outside of
    loops and within them.
    """

    reshards: Mean
    shards: Mean
    unshards: Mean
    sent_bytes: Mean
    whole_bytes: int
    kept_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleUse:
    """Gradients of n workers combined by a rule for f faulty ones, of which there were some.

    `rule_s`: what combining takes by itself, `over_mean` times a plain mean. `not_finite`: contributions in a
    step on average; `chosen`: share of the steps in whose result each worker had a part.
    """

    rule: str
    n: int
    f: int
    n_faulty: int
    selects: bool
    rule_s: Mean | None
    over_mean: Mean | None
    not_finite: float | None
    chosen: tuple[float, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One strategy on one workload and cluster shape, all its repeats together.

    Rates are examples per second, times seconds, bytes per step summed over all workers. `rate` comes from
    the median step of each repeat, `window_rate` from the wall time of all timed windows. `notes` are
    what the records themselves say, each once. `input_s` is what a step waits for its batch of a pipeline,
    `input_share` the part of the steps' time; `input_bound` where that hides what strategies differ in, and
    `host_bound` where GPUs wait for their host, which hides it too.
    `predicted_step_s` is what computing and the busiest link take, where links are limited and measured.
    `cpu_s` is the processor time of all workers in a step, `package_j` the energy of their
    hosts' sockets in it, `gpu_j` that of their GPUs, of which kernels ran for `gpu_busy` of the time;
    `gpu_peak_bytes` is the most that TensorFlow gave out of one GPU's memory, `gpu_own_bytes` the most that a
    worker held when windows ended; `price_per_hour` is that of all workers. Losses are those of the first and
    the last timed step, whose numbers count from the first step of the warm-up, which is 1. `metrics` are
    those of the model after `metric_step` steps. `traces` are files for a trace viewer, `placement` is what
    the plan of a usable repeat says, `passes` what made the first worker's graph.
    """

    strategy: str
    class_: str
    status: RowStatus
    rank: int | None
    is_baseline: bool
    n: int
    n_repeats: int
    rate: Estimate | None
    window_rate: Estimate | None
    ratio: Ratio | None
    p50_s: Estimate | None
    p90_s: Estimate | None
    p99_s: Estimate | None
    payload_bytes: Mean | None
    payload_is_bound: bool
    tcp_bytes: Mean | None
    interface_bytes: Mean | None
    between_hosts_bytes: Mean | None
    resent_bytes: Mean | None
    tcp_over_payload: float | None
    exposed_comm_s: Mean | None
    input_s: Mean | None
    input_share: Mean | None
    input_bound: bool
    host_bound: bool
    predicted_step_s: Mean | None
    step_over_predicted: Mean | None
    time_split: TimeSplit | None
    codec_s: Mean | None
    transform_s: Mean | None
    peak_rss_bytes: float | None
    resharding: LoopResharding | None
    rule: RuleUse | None
    metrics: Mapping[str, Mean]
    metric_step: Mean | None
    cpu_s: Mean | None
    package_j: Mean | None
    gpu_j: Mean | None
    gpu_busy: Mean | None
    gpu_own_bytes: int | None
    gpu_peak_bytes: int | None
    gpu_link_bytes: Mean | None
    gpu_pcie_bytes: Mean | None
    price_per_hour: float | None
    cost_per_million: Mean | None
    warmup_steps: Mean | None
    loss_first: Mean | None
    loss_last: Mean | None
    loss_first_step: Mean | None
    loss_last_step: Mean | None
    mark: Mark
    tcp_matrix: tuple[tuple[float | None, ...], ...] | None
    steps: tuple[StepSeries, ...]
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    traces: tuple[TraceFile, ...] = ()
    placement: Placement | None = None
    passes: tuple[PassRow, ...] = ()
