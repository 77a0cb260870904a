"""The metrics that stratbench exports: one table of names, types, help and labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PREFIX = "stratbench_"

# Bounded: what an experiment file lists. A run id here would make a new series for every run. A case's id
# tells apart all that makes cases differ; the others are for people, and say what is compared with what.
LABELS = ("experiment", "case", "workload", "strategy", "provider", "device", "precision", "xla", "input")


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One metric; its name carries the prefix and the base unit.

    Args:
        labels: names of the labels, in order.
        buckets: upper bounds of a histogram's buckets, in the metric's unit; empty for other types.
    """

    name: str
    type: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = LABELS
    buckets: tuple[float, ...] = ()


_STEP_BUCKETS_S = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)

METRICS: tuple[Metric, ...] = (
    Metric(
        name="stratbench_step_seconds",
        type="histogram",
        help="Time of one timed step on one worker.",
        buckets=_STEP_BUCKETS_S,
    ),
    Metric(
        name="stratbench_throughput_examples_per_second",
        type="gauge",
        help="Global examples per second of the newest repeat, by the slowest worker's wall time.",
    ),
    Metric(
        name="stratbench_payload_bytes_per_step",
        type="gauge",
        help="Bytes that the plan says all workers send in one step.",
    ),
    Metric(
        name="stratbench_tcp_bytes_per_step",
        type="gauge",
        help="Acknowledged TCP bytes between workers' sockets in one step, all workers together.",
    ),
    Metric(
        name="stratbench_exposed_communication_seconds",
        type="gauge",
        help="Step time beyond that of the same step without communication.",
    ),
    Metric(
        name="stratbench_update_error_ratio",
        type="gauge",
        help="Largest difference from the single-device reference, relative to the update.",
    ),
    Metric(
        name="stratbench_peak_resident_bytes",
        type="gauge",
        help="Largest resident memory of any worker in the newest repeat.",
    ),
    Metric(
        name="stratbench_cpu_seconds_per_step",
        type="gauge",
        help="Processor time of all workers in one step of the newest repeat.",
    ),
    Metric(
        name="stratbench_repeats_total",
        type="counter",
        help="Repeats ended, by how they ended (ok, failed, skipped, implausible).",
        labels=(*LABELS, "status"),
    ),
    Metric(
        name="stratbench_under_way",
        type="gauge",
        help="1 while a repeat of the strategy takes its windows, 0 after it has ended.",
    ),
    Metric(
        name="stratbench_rounds_done",
        type="gauge",
        help="Rounds that the repeat under way has done.",
    ),
    Metric(
        name="stratbench_rounds_expected",
        type="gauge",
        help="Rounds of a repeat.",
    ),
    Metric(
        name="stratbench_window_examples_per_second",
        type="gauge",
        help="Global examples per second of the newest window, by the median step of the slowest worker.",
    ),
    Metric(
        name="stratbench_steps_total",
        type="counter",
        help="Steps made in windows, those that lead into them included.",
    ),
    Metric(
        name="stratbench_sent_bytes_total",
        type="counter",
        help="Bytes that the plan says all workers have sent in these steps.",
    ),
    Metric(
        name="stratbench_resident_bytes",
        type="gauge",
        help="Resident memory of the worker that has most, after the newest window.",
    ),
    Metric(
        name="stratbench_last_sign_timestamp_seconds",
        type="gauge",
        help="When the newest window ended, in seconds since 1970: a run that hangs gives no newer one.",
    ),
    Metric(
        name="stratbench_repeats_left",
        type="gauge",
        help="Repeats that are to come, as far as is known.",
        labels=("experiment",),
    ),
    Metric(
        name="stratbench_left_seconds",
        type="gauge",
        help="How long these will take if they are like those before.",
        labels=("experiment",),
    ),
)


def metric(name: str) -> Metric:
    """Find a metric by its full name.

    Raises:
        KeyError: no such metric.
    """
    return {item.name: item for item in METRICS}[name]
