"""Metrics for Prometheus: served during a run, pushed after it, and written once a night."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from http.client import HTTPException
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal, Protocol
from urllib.error import URLError

from prometheus_client import (
    CONTENT_TYPE_PLAIN_0_0_4,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
    pushadd_to_gateway,
)

from harness.errors import UsageError, first_line
from harness.experiment.references import StrategyRef, WorkloadRef
from harness.measure.live import Remaining, WindowProgress
from harness.provision.source_hash import version
from harness.records.record import Record
from harness.records.steps_file import Steps

PREFIX = "stratbench_"

# Bounded by the experiment file. A run id here would create new series for every run.
LABELS = ("experiment", "case")
INFO_LABELS = (*LABELS, "workload", "strategy", "provider", "device", "precision", "xla", "input")
"""Labels of `stratbench_run_info`, which queries join with other series on experiment and case."""
STATES = ("starting", "measuring", "finished")
FORMER = {
    "predicted_sent_bytes_total": "sent_bytes_total",
    "predicted_payload_bytes_per_step": "payload_bytes_per_step",
    "remaining_repeats": "repeats_left",
    "remaining_seconds": "left_seconds",
}
"""Metric → its name in the previous release, which is also exported for one release."""


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


class RepeatGauge(Protocol):
    """Gauge of the newest repeat: name without the prefix, and function that reads its figure."""

    @property
    def name(self) -> str: ...

    @property
    def help(self) -> str: ...

    @property
    def of(self) -> Callable[[Record], float | None]: ...


def _metrics(
    kind: Literal["counter", "gauge"], labels: tuple[str, ...], helps: Mapping[str, str]
) -> Iterator[Metric]:
    for name, text in helps.items():
        yield Metric(name=f"{PREFIX}{name}", type=kind, help=text, labels=labels)


STEP_SECONDS = Metric(
    name=f"{PREFIX}step_seconds",
    type="histogram",
    help="Time of one timed step on one worker.",
    buckets=(0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
)
RUN_INFO = Metric(
    name=f"{PREFIX}run_info", type="gauge", help="Description of a case; always 1.", labels=INFO_LABELS
)
METRICS: tuple[Metric, ...] = (
    STEP_SECONDS,
    RUN_INFO,
    *_metrics("gauge", ("version",), {"build_info": "Version of stratbench; always 1."}),
    *_metrics("gauge", ("experiment", "state"), {"run_state": "1 for the current state of the run, else 0."}),
    *_metrics(
        "counter",
        (*LABELS, "status"),
        {
            "repeats_total": "Finished repeats by status (ok, failed, skipped, implausible).",
        },
    ),
    *_metrics(
        "gauge",
        LABELS,
        {
            "under_way": "1 while a repeat of the case is measured, else 0.",
            "rounds_done": "Finished rounds of the current repeat.",
            "rounds_expected": "Rounds of a repeat.",
            "window_examples_per_second": (
                "Global examples per second of the newest window: batch by median step of the slowest worker."
            ),
            "resident_bytes": "Resident memory of the largest worker after the newest window.",
            "last_sign_timestamp_seconds": "End of the newest window, in seconds since 1970.",
        },
    ),
    *_metrics(
        "counter",
        LABELS,
        {
            "steps_total": "Steps in windows, with those that lead into a window.",
            "predicted_sent_bytes_total": "Predicted bytes sent by all workers in these steps.",
        },
    ),
    *_metrics(
        "gauge",
        ("experiment",),
        {
            "remaining_repeats": "Remaining repeats, as far as is known.",
            "remaining_seconds": "Estimated time of the remaining repeats.",
        },
    ),
)


_PAGE_INTERVAL_S = 1.0
_CONNECTION_TIMEOUT_S = 10.0


class Exporter:
    """Metrics of a run in a registry of their own.

    The page for scrapers is written between windows, at most once a second and at the end of each repeat, so
    that a scrape in a window costs only the time to send it. Errors do not end the run.

    Args:
        experiment: name of the experiment.
        note: receives a line for each error.

    Attributes:
        registry: all metrics.
        page: the metrics in Prometheus' text format.
    """

    def __init__(
        self, experiment: str, repeat_gauges: Sequence[RepeatGauge], note: Callable[[str], None]
    ) -> None:
        self._experiment = experiment
        self._repeat_gauges = repeat_gauges
        self._note = note
        self.registry = CollectorRegistry()
        self.page = b""
        self._written_s = -math.inf
        metrics = (*METRICS, *map(metric_of, repeat_gauges))
        metrics = (*metrics, *filter(None, map(_former, metrics)))
        self._gauges = {
            metric.name: Gauge(metric.name, metric.help, metric.labels, registry=self.registry)
            for metric in metrics
            if metric.type == "gauge"
        }
        self._counters = {
            metric.name: Counter(metric.name, metric.help, metric.labels, registry=self.registry)
            for metric in metrics
            if metric.type == "counter"
        }
        self._step_seconds = Histogram(
            STEP_SECONDS.name, STEP_SECONDS.help, LABELS, buckets=STEP_SECONDS.buckets, registry=self.registry
        )
        self._set({"build_info": 1.0}, {"version": version()})
        self._state("starting")
        self._write()

    def window(self, moment: WindowProgress) -> None:
        """Update the metrics after a window."""
        with self._reporting_errors():
            labels = {"experiment": moment.experiment, "case": moment.case}
            self._set({"run_info": 1.0}, {name: _text(getattr(moment, name)) for name in INFO_LABELS})
            self._state("measuring")
            values = {
                "under_way": 1.0,
                "rounds_done": moment.n_rounds,
                "rounds_expected": moment.n_all_rounds,
                "window_examples_per_second": moment.examples_per_s,
                "resident_bytes": moment.resident_bytes,
                "last_sign_timestamp_seconds": moment.at_s,
            }
            self._set(values, labels)
            self._count("steps_total", moment.n_steps, labels)
            self._count("predicted_sent_bytes_total", moment.payload_bytes, labels)
            if time.monotonic() - self._written_s >= _PAGE_INTERVAL_S:
                self._write()

    def ended(self, record: Record, steps: Steps | None, left: Remaining) -> None:
        """Update the metrics after a repeat; `steps` is None unless it was measured."""
        with self._reporting_errors():
            info = labels_of(record)
            labels = {name: info[name] for name in LABELS}
            self._set({"run_info": 1.0}, info)
            self._state("measuring" if left.n_repeats else "finished")
            self._count("repeats_total", 1, {**labels, "status": record.status})
            self._set({gauge.name: gauge.of(record) for gauge in self._repeat_gauges}, labels)
            self._set({"under_way": 0.0}, labels)
            rest = {"remaining_repeats": left.n_repeats, "remaining_seconds": left.seconds}
            self._set(rest, {"experiment": self._experiment})
            if steps is not None:
                histogram = self._step_seconds.labels(**labels)
                for seconds in (steps.end_s - steps.start_s)[~steps.warmup]:
                    histogram.observe(float(seconds))
            self._write()

    @contextmanager
    def _reporting_errors(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, it is not the run's
            self._note(f"metrics: {type(error).__name__}: {first_line(str(error))}")

    def _state(self, current: str) -> None:
        for state in STATES:
            self._set(
                {"run_state": float(state == current)}, {"experiment": self._experiment, "state": state}
            )

    def _set(self, values: Mapping[str, float | None], labels: Mapping[str, str]) -> None:
        for name, value in values.items():
            if value is None:
                continue
            for known in _names(name):
                self._gauges[known].labels(**labels).set(value)

    def _count(self, name: str, by: float, labels: Mapping[str, str]) -> None:
        for known in _names(name):
            self._counters[known].labels(**labels).inc(by)

    def _write(self) -> None:
        self.page = generate_latest(self.registry)
        self._written_s = time.monotonic()


def metric_of(gauge: RepeatGauge) -> Metric:
    """Metric of a repeat's gauge."""
    return Metric(name=f"{PREFIX}{gauge.name}", type="gauge", help=gauge.help)


def _names(name: str) -> Iterator[str]:
    """Full names of a metric, including that of the previous release."""
    yield f"{PREFIX}{name}"
    if name in FORMER:
        yield f"{PREFIX}{FORMER[name]}"


def _former(metric: Metric) -> Metric | None:
    former = FORMER.get(metric.name.removeprefix(PREFIX))
    text = f"Former name of {metric.name}, dropped in the next release."
    return replace(metric, name=f"{PREFIX}{former}", help=text) if former else None


class _Server(ThreadingHTTPServer):
    """HTTP server that prints nothing about failing or leaving clients, because the output is the run's."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Print nothing."""


@contextmanager
def serve_metrics(
    listener: socket.socket,
    experiment: str,
    repeat_gauges: Sequence[RepeatGauge],
    note: Callable[[str], None],
) -> Iterator[Exporter]:
    """Serve an exporter's metrics at `/metrics` on a listening socket, which closes when the context ends."""
    exporter = Exporter(experiment, repeat_gauges, note)

    class Page(BaseHTTPRequestHandler):
        """Answers each request with the latest page."""

        timeout = _CONNECTION_TIMEOUT_S  # seconds without data on a connection

        def do_GET(self) -> None:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", CONTENT_TYPE_PLAIN_0_0_4)
            self.send_header("Content-Length", str(len(page := exporter.page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by the library
            """Print nothing."""

    with _Server(listener.getsockname(), Page, bind_and_activate=False) as server:
        server.socket.close()
        server.socket = listener
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield exporter
        finally:
            server.shutdown()
            thread.join()


def labels_of(record: Record) -> dict[str, str]:
    """Labels of a record's `stratbench_run_info`."""
    method = record.method
    return {
        "experiment": record.experiment or "",
        "case": record.case,
        "workload": str(WorkloadRef(reference=record.workload, params=record.workload_params)),
        "strategy": str(StrategyRef(name=record.strategy, params=record.strategy_params)),
        "provider": record.provider,
        "device": record.device,
        "precision": "" if method is None else method.precision,
        "xla": "" if method is None else _text(method.xla),
        "input": "" if method is None else method.input,
    }


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


_JOB = "stratbench"
_TIMEOUT_S = 10.0


def push_newest(records: Iterable[Record], url: str, repeat_gauges: Sequence[RepeatGauge]) -> int:
    """Push the newest usable repeat of each case.

    Each case has its own group, so that the last good values of a failed case stay.

    Args:
        records: records of a run, in the order in which they ended.
        url: URL of the Pushgateway, such as http://127.0.0.1:9091.
    Returns:
        Number of pushed cases.
    Raises:
        UsageError: no Pushgateway answers there.
    """
    newest = {record.case: record for record in records if record.status == "ok"}
    for record in newest.values():
        info = labels_of(record)
        key = {name: info.pop(name) for name in LABELS}
        registry = CollectorRegistry()
        Gauge(RUN_INFO.name, RUN_INFO.help, info, registry=registry).labels(**info).set(1.0)
        for gauge in repeat_gauges:
            value = gauge.of(record)
            if value is None:
                continue
            for name in _names(gauge.name):
                Gauge(name, gauge.help, registry=registry).set(value)
        try:
            pushadd_to_gateway(url, job=_JOB, registry=registry, grouping_key=key, timeout=_TIMEOUT_S)
        except (URLError, HTTPException, OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            raise UsageError(
                f"must be the address of a Pushgateway, such as http://127.0.0.1:9091, got {url} ({reason})",
                field="push_gateway",
            ) from None
    return len(newest)


_HOST = "127.0.0.1"


def listen(port: int) -> socket.socket:
    """Listen on a port of this host's loopback.

    Raises:
        UsageError: the port is taken or not allowed.
    """
    try:
        return socket.create_server((_HOST, port))
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"must be a free port of {_HOST}, got {port} ({error}); choose another one", field="metrics_port"
        ) from error


SERIES_LABELS = ("experiment", "case", "workload", "shape", "strategy", "metric", "against")
"""Labels with bounded values: no date, run or commit."""

NIGHT_METRICS: tuple[Metric, ...] = (
    *_metrics(
        "gauge",
        ("experiment",),
        {
            "nightly_timestamp_seconds": "When the night's run began, in seconds since 1970.",
            "nightly_regressed": "1 if something has got worse that nobody has said is known, otherwise 0.",
            "nightly_cases_without_figure": "Cases of the night that have no figure.",
        },
    ),
    *_metrics(
        "gauge",
        ("experiment", "state"),
        {
            "nightly_series": "Series by their state in the night.",
        },
    ),
    *_metrics(
        "gauge",
        SERIES_LABELS,
        {
            "nightly_figure": "The night's figure of a series, in the unit of its metric.",
            "nightly_regression_ratio": (
                "By what the figure of a regressed series was multiplied when it got worse."
            ),
        },
    ),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class SeriesFigure:
    """One series of a night.

    Args:
        labels: values of all `SERIES_LABELS` except the experiment.
        value: None if the night has none.
        regression: factor by which the series changed when it got worse; None if it did not.
    """

    labels: Mapping[str, str]
    value: float | None
    regression: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class NightFigures:
    """Metrics of a night.

    Args:
        began_s: start, in seconds since 1970.
        n_by_state: number of series in each state, 0 included.
        n_lost: cases without a figure.
    """

    experiment: str
    began_s: float
    n_by_state: Mapping[str, int]
    n_lost: int
    series: tuple[SeriesFigure, ...]


def night_page(night: NightFigures) -> bytes:
    """Metrics of a night in Prometheus' text format."""
    registry = CollectorRegistry()
    gauges = {
        metric.name: Gauge(metric.name, metric.help, metric.labels, registry=registry)
        for metric in NIGHT_METRICS
    }
    of_night = {
        "stratbench_nightly_timestamp_seconds": night.began_s,
        "stratbench_nightly_regressed": float(any(series.regression is not None for series in night.series)),
        "stratbench_nightly_cases_without_figure": night.n_lost,
    }
    for name, value in of_night.items():
        gauges[name].labels(experiment=night.experiment).set(value)
    for state, count in night.n_by_state.items():
        gauges["stratbench_nightly_series"].labels(experiment=night.experiment, state=state).set(count)
    for series in night.series:
        labels = {**series.labels, "experiment": night.experiment}
        if series.value is not None:
            gauges["stratbench_nightly_figure"].labels(**labels).set(series.value)
        if series.regression is not None:
            gauges["stratbench_nightly_regression_ratio"].labels(**labels).set(series.regression)
    return generate_latest(registry)
