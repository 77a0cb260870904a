"""The page of a night for Prometheus: what the night says of its series, and their figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Gauge, generate_latest

from harness.measure.export.metrics import Metric

SERIES_LABELS = ("experiment", "case", "workload", "shape", "strategy", "metric", "against")
"""Bounded by what is followed: no date, run or commit is among them."""

NIGHT_METRICS: tuple[Metric, ...] = (
    Metric(
        name="stratbench_nightly_timestamp_seconds",
        type="gauge",
        help="When the night's run began, in seconds since 1970.",
        labels=("experiment",),
    ),
    Metric(
        name="stratbench_nightly_regressed",
        type="gauge",
        help="1 if something has got worse that nobody has said is known, otherwise 0.",
        labels=("experiment",),
    ),
    Metric(
        name="stratbench_nightly_cases_without_figure",
        type="gauge",
        help="Cases of the night that have no figure.",
        labels=("experiment",),
    ),
    Metric(
        name="stratbench_nightly_series",
        type="gauge",
        help="Series by their state in the night.",
        labels=("experiment", "state"),
    ),
    Metric(
        name="stratbench_nightly_figure",
        type="gauge",
        help="The night's figure of a series, in the unit of its metric.",
        labels=SERIES_LABELS,
    ),
    Metric(
        name="stratbench_nightly_regression_ratio",
        type="gauge",
        help="By what the figure of a regressed series was multiplied when it got worse.",
        labels=SERIES_LABELS,
    ),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesFigure:
    """One series of a night.

    Args:
        labels: all of `SERIES_LABELS` but the experiment.
        regression: by what it was multiplied when it got worse; None where it has not.
    """

    labels: Mapping[str, str]
    value: float
    regression: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class NightFigures:
    """All that a night gives Prometheus.

    Args:
        began_s: since 1970.
        n_by_state: series in each state, also in those that none is in.
        n_lost: cases without a figure.
    """

    experiment: str
    began_s: float
    n_by_state: Mapping[str, int]
    n_lost: int
    series: tuple[SeriesFigure, ...]


def night_page(night: NightFigures) -> bytes:
    """The night in Prometheus' text format."""
    registry = CollectorRegistry()
    gauges = {
        metric.name: Gauge(metric.name, metric.help, metric.labels, registry=registry)
        for metric in NIGHT_METRICS
    }
    of_night = {
        "stratbench_nightly_timestamp_seconds": night.began_s,
        "stratbench_nightly_regressed": float(any(each.regression is not None for each in night.series)),
        "stratbench_nightly_cases_without_figure": night.n_lost,
    }
    for name, value in of_night.items():
        gauges[name].labels(experiment=night.experiment).set(value)
    for state, count in night.n_by_state.items():
        gauges["stratbench_nightly_series"].labels(experiment=night.experiment, state=state).set(count)
    for each in night.series:
        labels = {**each.labels, "experiment": night.experiment}
        gauges["stratbench_nightly_figure"].labels(**labels).set(each.value)
        if each.regression is not None:
            gauges["stratbench_nightly_regression_ratio"].labels(**labels).set(each.regression)
    return generate_latest(registry)
