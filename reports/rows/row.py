"""Table of figures: each field of a row, how it is read from records, combined, named and shown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from reports.quantities import MISSING, Cell, count, digits, limits, mean_cell, number_cell, plain
from reports.rows import repeat
from reports.rows.figure import (
    Column,
    Figure,
    Followed,
    Gauge,
    RepeatGauge,
    either,
    estimate,
    fact,
    figures_of,
    largest,
    mean,
)
from reports.rows.parts import (
    Mark,
    PassRow,
    Placement,
    PredictedStep,
    Problem,
    RowStatus,
    StepSeries,
    TraceFile,
)
from reports.statistics import Estimate, Mean, Ratio

_OF_GPUS = ("gpu_j", "gpu_busy", "gpu_own_bytes", "gpu_peak_bytes")


def _any_row(*names: str) -> Callable[[Any], bool]:
    return lambda comparison: any(getattr(row, name) is not None for row in comparison.rows for name in names)


def _any_sent(name: str) -> Callable[[Any], bool]:
    return lambda comparison: any(
        sent is not None and sent.high for row in comparison.rows for sent in (getattr(row, name),)
    )


def _on_gpus(comparison: Any) -> bool:
    return any(row.time_split is not None and row.time_split.host_s for row in comparison.rows)


def _part_cell(split: TimeSplit, part: Mean | None) -> Cell:
    cell = mean_cell(part, "seconds")
    if part is None or not split.step_s.value:
        return cell
    return replace(cell, note=f"{100 * part.value / split.step_s.value:.0f} %, {cell.note}")


def _share_cell(_: TimeSplit, share: Mean | None) -> Cell:
    if share is None:
        return Cell(text=MISSING)
    low, high = (f"{100 * limit:.0f}" for limit in (share.low, share.high))
    note = f"n = {share.n}, {low}\N{EN DASH}{high} %"
    return Cell(text=f"{100 * share.value:.0f} %", note=note, value=share.value)


def _input_cell(row: Row, wait: Mean | None) -> Cell:
    cell = mean_cell(wait, "seconds")
    if row.input_share is None:
        return cell
    return replace(cell, note=f"{100 * row.input_share.value:.0f} % of the steps, {cell.note}")


def _predicted_cell(_: Row, predicted: PredictedStep | None) -> Cell:
    if predicted is None:
        return Cell(text=MISSING)
    return number_cell(predicted.value, "seconds", limits(predicted.interval, unit="seconds"))


def _overhead_cell(_: Row, overhead: float | None) -> Cell:
    return Cell(text=MISSING if overhead is None else digits(overhead, significant=4), value=overhead)


def _gpu_memory_cell(row: Row, peak_bytes: int | None) -> Cell:
    if peak_bytes is None:
        return number_cell(row.gpu_own_bytes, "bytes", "held when windows ended" if row.gpu_own_bytes else "")
    return number_cell(peak_bytes, "bytes", "peak of TensorFlow's allocator")


def _cost_cell(row: Row, cost: Mean | None) -> Cell:
    cell = mean_cell(cost)
    return replace(cell, note=f"at {plain(row.price_per_hour)} an hour, {cell.note}") if cost else cell


def _loss_cell(loss: Mean | None, step: Mean | None) -> Cell:
    """Loss with its step number: a later loss had more training before it."""
    cell = mean_cell(loss)
    if loss is None or step is None:
        return cell
    first, last = count(step.low), count(step.high)
    at = f"step {first}" if first == last else f"steps {first} to {last}"
    return replace(cell, note=f"{at}, {cell.note}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSplit:
    """Time of a traced step by activity, mean over workers.

    Each moment counts once, as the first that applies: computing, transfer, host, waiting, rest.

    Attributes:
        receiving_s: transfer from other workers, including transfer during computing.
        hidden_share: share of `receiving_s` during computing.
        received_bytes, n_transfers: sums over all workers.
        algorithm_bytes_per_s: bytes of one replica's gradients ÷ transfer time of the slowest worker.
        bus_bytes_per_s: bytes in one direction of the busiest worker ÷ transfer time of the slowest worker.
        copy_s, host_s: copies within workers, and time of the host; None without GPUs.

    Source:
        NCCL tests, PERFORMANCE.md, for both bandwidths.
    """

    step_s: Mean = mean(
        repeat.traced_mean("step_s"), "traced_step_s", Column("traced", "traced step", 1), unit="seconds"
    )
    compute_s: Mean = mean(
        repeat.traced_mean("compute_s"), "traced_compute_s", Column("traced", "computing", 2, cell=_part_cell)
    )
    transfer_s: Mean = mean(
        repeat.traced_mean("transfer_s"),
        "traced_transfer_s",
        Column("traced", "transfer", 3, cell=_part_cell),
    )
    wait_s: Mean = mean(
        repeat.traced_mean("wait_s"),
        "traced_wait_s",
        Column("traced", "waiting for workers", 6, cell=_part_cell),
    )
    rest_s: Mean = mean(repeat.traced_rest_s, "traced_rest_s", Column("traced", "rest", 7, cell=_part_cell))
    receiving_s: Mean = mean(
        repeat.traced_mean("receiving_s"),
        "traced_receiving_s",
        Column("traced", "transfer in all", 8, cell=_part_cell),
    )
    hidden_share: Mean | None = mean(
        repeat.hidden_share, "traced_hidden_share", Column("traced", "of it hidden", 9, cell=_share_cell)
    )
    received_bytes: Mean | None = mean(repeat.traced_sum("received_bytes"), "traced_received_bytes")
    n_transfers: Mean | None = mean(
        repeat.traced_sum("n_transfers"),
        "traced_n_transfers",
        Column("traced", "transfers", 10),
        unit="count",
    )
    algorithm_bytes_per_s: Mean | None = mean(
        repeat.algorithm_bandwidth,
        "traced_algorithm_bytes_per_s",
        Column("traced", "algorithm bandwidth", 11),
        unit="bandwidth",
    )
    bus_bytes_per_s: Mean | None = mean(
        repeat.bus_bandwidth,
        "traced_bus_bytes_per_s",
        Column("traced", "bus bandwidth", 12),
        unit="bandwidth",
    )
    copy_s: Mean | None = mean(
        repeat.traced_mean("copy_s"),
        "traced_copy_s",
        Column("traced", "copies in it", 4, when=_on_gpus, cell=_part_cell),
    )
    host_s: Mean | None = mean(
        repeat.traced_mean("host_s"),
        "traced_host_s",
        Column("traced", "host", 5, when=_on_gpus, cell=_part_cell),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopResharding:
    """Resharding of variables per run of the host loop.

    Attributes:
        reshards, shards, unshards: counts per replica.
        sent_bytes: sum over replicas.
        whole_bytes, kept_bytes: memory of a replica for sharded variables, outside and inside of loops.
    """

    reshards: Mean = mean("resharding.reshards", "reshards_per_run", Column("resharding", "requested", 2))
    shards: Mean = mean("resharding.shards", "", Column("resharding", "made", 3))
    unshards: Mean = mean("resharding.unshards", "", Column("resharding", "undone", 4))
    sent_bytes: Mean = mean(
        "resharding.sent_bytes", "reshard_sent_bytes", Column("resharding", "bytes a loop", 5), unit="bytes"
    )
    whole_bytes: int = largest("resharding.whole_bytes", "", Column("resharding", "outside", 7), unit="bytes")
    kept_bytes: int = largest(
        "resharding.kept_bytes", "", Column("resharding", "memory within loops", 6), unit="bytes"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RuleUse:
    """Use of a robust aggregation rule for n workers.

    Attributes:
        f: number of faulty workers that the rule tolerates.
        n_faulty: number of workers with injected faults.
        selects: true if the rule selects whole gradients.
        rule_s: time of the rule per step.
        over_mean: `rule_s` ÷ time of a plain mean.
        not_finite: mean number of non-finite contributions per step.
        chosen: share of steps in which each worker's gradient was selected.
    """

    rule: str = fact("rule")
    n: int
    f: int
    n_faulty: int = fact("n_faulty")
    selects: bool
    rule_s: Mean | None = mean(
        "aggregation.rule_s", "rule_s", Column("rules", "combining", 2), unit="seconds"
    )
    over_mean: Mean | None = mean(
        lambda r: (
            r.aggregation.rule_s / r.aggregation.mean_s
            if r.aggregation and r.aggregation.rule_s and r.aggregation.mean_s
            else None
        ),
        "",
        Column("rules", "÷ plain mean", 3),
    )
    not_finite: float | None = fact(column=Column("rules", "not finite", 5))
    chosen: tuple[float, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One strategy on one workload and cluster shape, over all repeats.

    Rates are examples per second, times seconds. Bytes, CPU time and energy are per step, sums over all
    workers. New figures are added at the end, because programs read CSV and JSON by position.

    Attributes:
        rate, window_rate: throughput by the median step of each repeat, and by the wall time of all timed
            windows.
        input_s, input_share: time that a step waits for its batch, and its share of the step.
        input_bound, host_bound: true if waiting for input or for the host hides differences of strategies.
        predicted_step_s: simulated duration of a step; None if the case was not predicted.
        step_over_predicted: median step of each repeat ÷ `predicted_step_s`.
        package_j, gpu_j: energy of CPU sockets and of GPUs.
        gpu_busy: share of time with running kernels.
        gpu_peak_bytes, gpu_own_bytes: peak of TensorFlow's allocator on one GPU, and most memory that a
            worker held at the end of windows.
        loss_first, loss_last: loss of the first and last timed step; the first step of the warm-up is 1.
        metrics: metrics of the model after `metric_step` steps.
        traces: files for a trace viewer.
        placement: plan of the first usable repeat.
        passes: passes that built the graph of the first worker.
        notes: notes of the records, without repetitions.
    """

    strategy: str = fact("strategy")
    class_: str = fact("class")
    status: RowStatus = fact("status")
    rank: int | None = fact("rank")
    is_baseline: bool = fact("is_baseline")
    n: int = fact("n")
    n_repeats: int = fact("n_repeats")
    rate: Estimate | None = estimate(
        "median_examples_per_s", "examples_per_s", Column("speed", "examples/s", 3)
    )
    window_rate: Estimate | None = estimate(
        "examples_per_s",
        "window_examples_per_s",
        Column("speed", "whole window", 6),
        gauge=Gauge(
            name="throughput_examples_per_second",
            help="Global examples per second of the newest repeat, by the slowest worker's wall time.",
        ),
    )
    ratio: Ratio | None = fact("ratio", has_interval=True)
    p50_s: Estimate | None = estimate(
        "step_s.p50", "step_p50_s", Column("steps", "step p50", 1), unit="seconds", terminal="step"
    )
    predicted_step_s: PredictedStep | None = fact(
        "predicted_step_s",
        Column("predictions", "predicted", 1, cell=_predicted_cell),
        unit="seconds",
        has_interval=True,
        terminal="predicted",
    )
    p90_s: Estimate | None = estimate("step_s.p90", "step_p90_s", Column("steps", "p90", 2), unit="seconds")
    p99_s: Estimate | None = estimate("step_s.p99", "step_p99_s", Column("steps", "p99", 3), unit="seconds")
    payload_bytes: Mean | None = mean(
        "payload_bytes_per_step",
        "payload_bytes_per_step",
        Column("bytes", "payload predicted", 1),
        unit="bytes",
        gauge=Gauge(
            name="predicted_payload_bytes_per_step", help="Predicted bytes sent by all workers in one step."
        ),
        followed=Followed(metric="payload_bytes", name="payload", least_effect=0.01, usual_noise=0.003),
    )
    payload_is_bound: bool = either("payload_is_bound", "payload_is_bound")
    tcp_bytes: Mean | None = mean(
        "tcp_bytes_per_step",
        "tcp_bytes_per_step",
        Column("bytes", "TCP measured", 2),
        unit="bytes",
        csv_range=True,
        terminal="sent/step",
        gauge=Gauge(
            name="tcp_bytes_per_step",
            help="Acknowledged TCP bytes between workers' sockets in one step, all workers together.",
        ),
        followed=Followed(metric="tcp_bytes", name="TCP", least_effect=0.05, usual_noise=0.01),
    )
    interface_bytes: Mean | None = mean(
        "interface_bytes_per_step",
        "interface_bytes_per_step",
        Column("bytes", "interface measured", 3),
        unit="bytes",
    )
    between_hosts_bytes: Mean | None = mean(
        repeat.between_hosts_bytes,
        "between_hosts_bytes_per_step",
        Column("bytes", "of TCP between hosts", 5, when=_any_sent("between_hosts_bytes")),
        unit="bytes",
    )
    resent_bytes: Mean | None = mean(
        "resent_bytes_per_step",
        "resent_bytes_per_step",
        Column("bytes", "sent again", 6, when=_any_sent("resent_bytes")),
        unit="bytes",
    )
    tcp_over_payload: float | None = fact(
        "tcp_over_payload", Column("bytes", "TCP ÷ payload", 4, cell=_overhead_cell)
    )
    exposed_comm_s: Mean | None = mean(
        "exposed_comm_s",
        "exposed_comm_s",
        Column("steps", "exposed communication", 4),
        unit="seconds",
        csv_range=True,
        gauge=Gauge(
            name="exposed_communication_seconds",
            help="Step time beyond that of the same step without communication.",
        ),
    )
    input_s: Mean | None = mean(
        "input_s.mean",
        "input_s",
        Column("steps", "waiting for input", 10, cell=_input_cell, if_any=True),
        unit="seconds",
    )
    input_share: Mean | None = mean("input_s.share", "input_share")
    input_bound: bool = either("input_s.bound", "input_bound")
    host_bound: bool = either("traced_step.host_bound", "host_bound")
    step_over_predicted: Mean | None = fact("step_over_predicted")
    time_split: TimeSplit | None = None
    codec_s: Mean | None = mean("codec_s", "codec_s", Column("steps", "codec", 5), unit="seconds")
    transform_s: Mean | None = mean(
        "transform_s", "transform_s", Column("costs", "graph rewrite", 9), unit="seconds"
    )
    peak_rss_bytes: int | None = largest(
        repeat.peak_rss_bytes,
        "peak_rss_bytes",
        gauge=Gauge(
            name="peak_resident_bytes", help="Largest resident memory of any worker in the newest repeat."
        ),
    )
    resharding: LoopResharding | None = None
    rule: RuleUse | None = None
    metrics: Mapping[str, Mean]
    metric_step: Mean | None = mean("evaluation.step", "metric_step")
    cpu_s: Mean | None = mean(
        lambda r: sum(r.cpu_s_per_step) if r.cpu_s_per_step else None,
        "cpu_s_per_step",
        Column("costs", "CPU time of a step", 1),
        unit="seconds",
        gauge=Gauge(
            name="cpu_seconds_per_step",
            help="Processor time of all workers in one step of the newest repeat.",
        ),
    )
    package_j: Mean | None = mean(
        "energy.package_j_per_step",
        "package_j_per_step",
        Column("costs", "energy of a step, J", 2, if_any=True),
    )
    gpu_j: Mean | None = mean(
        "gpus.joules_per_step",
        "gpu_j_per_step",
        Column("costs", "energy of GPUs, J", 3, when=_any_row(*_OF_GPUS)),
    )
    gpu_busy: Mean | None = mean(
        "gpus.busy", "gpu_busy", Column("costs", "GPUs busy, share", 4, when=_any_row(*_OF_GPUS))
    )
    gpu_own_bytes: int | None = largest(
        lambda r: r.gpus.own_bytes or None if r.gpus else None, "gpu_own_bytes"
    )
    gpu_peak_bytes: int | None = largest(
        lambda r: r.gpus.peak_bytes or None if r.gpus else None,
        "gpu_peak_bytes",
        Column("costs", "largest worker's GPU memory", 5, when=_any_row(*_OF_GPUS), cell=_gpu_memory_cell),
    )
    gpu_link_bytes: Mean | None = mean(
        "gpus.link_bytes_per_step",
        "gpu_link_bytes_per_step",
        Column("costs", "over NVLink", 6, if_any=True),
        unit="bytes",
    )
    gpu_pcie_bytes: Mean | None = mean(
        "gpus.pcie_bytes_per_step",
        "gpu_pcie_bytes_per_step",
        Column("costs", "from GPUs over PCI Express", 7, if_any=True),
        unit="bytes",
    )
    price_per_hour: float | None = fact("price_per_hour")
    cost_per_million: Mean | None = mean(
        "cost_per_million_examples",
        "cost_per_million_examples",
        Column("costs", "cost of a million examples", 8, cell=_cost_cell, if_any=True),
    )
    warmup_steps: Mean | None = mean(
        "warmup_steps", "warmup_steps", Column("steps", "warm-up steps", 6), unit="count"
    )
    loss_first: Mean | None = mean(
        lambda r: r.loss[0] if r.loss else None,
        "loss_first",
        Column("checks", "first timed loss", 5, cell=lambda row, loss: _loss_cell(loss, row.loss_first_step)),
    )
    loss_last: Mean | None = mean(
        lambda r: r.loss[-1] if r.loss else None,
        "loss_last",
        Column("checks", "last timed loss", 6, cell=lambda row, loss: _loss_cell(loss, row.loss_last_step)),
    )
    loss_first_step: Mean | None = mean(repeat.loss_step(0), "loss_first_step")
    loss_last_step: Mean | None = mean(repeat.loss_step(-1), "loss_last_step")
    mark: Mark = fact(
        of="equivalence.max_update_error",
        gauge=Gauge(
            name="update_error_ratio",
            help="Largest difference from the single-device reference, relative to the update.",
        ),
    )
    tcp_matrix: tuple[tuple[float | None, ...], ...] | None
    steps: tuple[StepSeries, ...] = ()
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]
    traces: tuple[TraceFile, ...] = ()
    placement: Placement | None = None
    passes: tuple[PassRow, ...] = ()
    gpu_w: Mean | None = mean(
        lambda r: (
            r.gpus.joules_per_step / r.step_s.mean
            if r.gpus and r.gpus.joules_per_step is not None and r.step_s and r.step_s.mean
            else None
        ),
        "gpu_w",
        Column("costs", "power of GPUs, W", if_any=True),
    )
    usual_name: str | None = fact("usual_name")

    @property
    def prediction_error(self) -> float | None:
        """Predicted ÷ measured duration of a step, minus 1."""
        if self.predicted_step_s is None or self.p50_s is None:
            return None
        return self.predicted_step_s.value / self.p50_s.value - 1.0


PARTS: Mapping[str, type] = {"time_split": TimeSplit, "resharding": LoopResharding, "rule": RuleUse}
"""Parts of a row with figures of their own."""


def all_figures() -> tuple[tuple[str, Figure], ...]:
    """All figures, each with the name of its part; the name is empty for the row itself."""
    parts = {"": Row, **PARTS}
    return tuple((part, figure) for part, kind in parts.items() for figure in figures_of(kind).values())


def followed_figures() -> Mapping[Followed, Figure]:
    """Figures that are tracked from run to run."""
    return {figure.followed: figure for figure in figures_of(Row).values() if figure.followed is not None}


def repeat_gauges() -> tuple[RepeatGauge, ...]:
    """Prometheus gauges of a repeat."""
    return tuple(
        RepeatGauge(name=figure.gauge.name, help=figure.gauge.help, of=figure.read)
        for figure in figures_of(Row).values()
        if figure.gauge is not None and figure.of is not None
    )
