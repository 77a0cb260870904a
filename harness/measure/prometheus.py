"""Metrics for Prometheus: served while a run goes on, pushed after it, and written once a night."""

from __future__ import annotations

import math
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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
from harness.measure.live import Left, Moment
from harness.records.record import Record
from harness.records.steps_file import Steps

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


class RepeatGauge(Protocol):
    """Gauge of the newest repeat: its name without the prefix, and the reader of its figure."""

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
METRICS: tuple[Metric, ...] = (
    STEP_SECONDS,
    *_metrics(
        "counter",
        (*LABELS, "status"),
        {
            "repeats_total": "Repeats ended, by how they ended (ok, failed, skipped, implausible).",
        },
    ),
    *_metrics(
        "gauge",
        LABELS,
        {
            "under_way": "1 while a repeat of the strategy takes its windows, 0 after it has ended.",
            "rounds_done": "Rounds that the repeat under way has done.",
            "rounds_expected": "Rounds of a repeat.",
            "window_examples_per_second": (
                "Global examples per second of the newest window, by the median step of the slowest worker."
            ),
            "resident_bytes": "Resident memory of the worker that has most, after the newest window.",
            "last_sign_timestamp_seconds": (
                "When the newest window ended, in seconds since 1970: a run that hangs gives no newer one."
            ),
        },
    ),
    *_metrics(
        "counter",
        LABELS,
        {
            "steps_total": "Steps made in windows, those that lead into them included.",
            "sent_bytes_total": "Bytes that the plan says all workers have sent in these steps.",
        },
    ),
    *_metrics(
        "gauge",
        ("experiment",),
        {
            "repeats_left": "Repeats that are to come, as far as is known.",
            "left_seconds": "How long these will take if they are like those before.",
        },
    ),
)


_BETWEEN_S = 1.0
_SILENT_S = 10.0


class Exporter:
    """The metrics of `harness.measure.prometheus`, in a registry of their own.

    The page that scrapers are given is written between windows, at most once a second and at the end of each
    repeat: a scrape in a window costs the time to send it. Its errors end no run.

    Args:
        note: receives a line for each error.

    Attributes:
        registry: what the page shows.
        page: in Prometheus' text format.
    """

    def __init__(self, repeat_gauges: Sequence[RepeatGauge], note: Callable[[str], None]) -> None:
        self._repeat_gauges = repeat_gauges
        self._note = note
        self.registry = CollectorRegistry()
        self.page = b""
        self._written_s = -math.inf
        metrics = (*METRICS, *map(metric_of, repeat_gauges))
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
        self._write()

    def window(self, moment: Moment) -> None:
        """Show a window that has ended."""
        with self._noting():
            labels = {name: _text(getattr(moment, name)) for name in LABELS}
            values = {
                "stratbench_under_way": 1.0,
                "stratbench_rounds_done": moment.n_rounds,
                "stratbench_rounds_expected": moment.n_all_rounds,
                "stratbench_window_examples_per_second": moment.examples_per_s,
                "stratbench_resident_bytes": moment.resident_bytes,
                "stratbench_last_sign_timestamp_seconds": moment.at_s,
            }
            self._set(values, labels)
            self._counters["stratbench_steps_total"].labels(**labels).inc(moment.n_steps)
            self._counters["stratbench_sent_bytes_total"].labels(**labels).inc(moment.payload_bytes)
            if time.monotonic() - self._written_s >= _BETWEEN_S:
                self._write()

    def ended(self, record: Record, steps: Steps | None, left: Left) -> None:
        """Show a repeat that has ended; `steps` is None unless it was measured."""
        with self._noting():
            labels = labels_of(record)
            self._counters["stratbench_repeats_total"].labels(**labels, status=record.status).inc()
            values = {f"{PREFIX}{gauge.name}": gauge.of(record) for gauge in self._repeat_gauges}
            self._set({**values, "stratbench_under_way": 0.0}, labels)
            whole = {"stratbench_repeats_left": left.n_repeats, "stratbench_left_seconds": left.seconds}
            self._set(whole, {"experiment": labels["experiment"]})
            if steps is not None:
                histogram = self._step_seconds.labels(**labels)
                for seconds in (steps.end_s - steps.start_s)[~steps.warmup]:
                    histogram.observe(float(seconds))
            self._write()

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, it is not the run's
            self._note(f"metrics: {type(error).__name__}: {first_line(str(error))}")

    def _set(self, values: Mapping[str, float | None], labels: Mapping[str, str]) -> None:
        for name, value in values.items():
            if value is not None:
                self._gauges[name].labels(**labels).set(value)

    def _write(self) -> None:
        self.page = generate_latest(self.registry)
        self._written_s = time.monotonic()


def metric_of(gauge: RepeatGauge) -> Metric:
    """The metric of a gauge of repeats."""
    return Metric(name=f"{PREFIX}{gauge.name}", type="gauge", help=gauge.help)


class _Server(ThreadingHTTPServer):
    """HTTP server that prints nothing about clients that fail or leave early: the run owns the output."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing."""


@contextmanager
def serve_metrics(
    listener: socket.socket, repeat_gauges: Sequence[RepeatGauge], note: Callable[[str], None]
) -> Iterator[Exporter]:
    """Serve an exporter's metrics at `/metrics` on a listening socket, which closes when the context ends."""
    exporter = Exporter(repeat_gauges, note)

    class Page(BaseHTTPRequestHandler):
        """Answers each request with the page as it was last written."""

        timeout = _SILENT_S  # of a connection on which nothing comes

        def do_GET(self) -> None:
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", CONTENT_TYPE_PLAIN_0_0_4)
            self.send_header("Content-Length", str(len(page := exporter.page)))
            self.end_headers()
            self.wfile.write(page)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - named by the library
            """Say nothing."""

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
    """Labels of a record's metrics."""
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

    Each has a group of its own, so that one that failed keeps there what an earlier run found.

    Args:
        records: of a run, in the order they ended.
        url: of the Pushgateway, such as http://127.0.0.1:9091.
    Returns:
        how many cases were pushed.
    Raises:
        UsageError: no Pushgateway takes it there.
    """
    newest = {tuple(labels_of(record).items()): record for record in records if record.status == "ok"}
    for labels, record in newest.items():
        registry = CollectorRegistry()
        for gauge in repeat_gauges:
            value = gauge.of(record)
            if value is not None:
                Gauge(f"{PREFIX}{gauge.name}", gauge.help, registry=registry).set(value)
        try:
            pushadd_to_gateway(
                url, job=_JOB, registry=registry, grouping_key=dict(labels), timeout=_TIMEOUT_S
            )
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
        UsageError: the port cannot be had.
    """
    try:
        return socket.create_server((_HOST, port))
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"must be a free port of {_HOST}, got {port} ({error}); choose another one", field="metrics_port"
        ) from error


SERIES_LABELS = ("experiment", "case", "workload", "shape", "strategy", "metric", "against")
"""Bounded by what is followed: no date, run or commit is among them."""

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
        labels: all of `SERIES_LABELS` but the experiment.
        value: None where the night has no figure of it.
        regression: by what it was multiplied when it got worse; None where it has not.
    """

    labels: Mapping[str, str]
    value: float | None
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
        if each.value is not None:
            gauges["stratbench_nightly_figure"].labels(**labels).set(each.value)
        if each.regression is not None:
            gauges["stratbench_nightly_regression_ratio"].labels(**labels).set(each.regression)
    return generate_latest(registry)
