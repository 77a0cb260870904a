"""Serves `/metrics` for Prometheus on this machine while a run goes on."""

import math
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import (
    CONTENT_TYPE_PLAIN_0_0_4,
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    generate_latest,
)

from harness.experiment.references import StrategyRef, WorkloadRef
from harness.measure.export.metrics import LABELS, METRICS, Metric
from harness.measure.live import Left, Moment
from harness.records.record import Record
from harness.records.steps_file import Steps

_BETWEEN_S = 1.0
_SILENT_S = 10.0


class Exporter:
    """The metrics of `harness.measure.export.metrics`, in a registry of their own.

    The page that scrapers are given is written between windows, at most once a second and at the end of each
    repeat: a scrape in a window costs the time to send it.

    Attributes:
        registry: what the page shows.
        page: in Prometheus' text format.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.page = b""
        self._written_s = -math.inf
        self._gauges: dict[str, Gauge] = {}
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        for metric in METRICS:
            self._add(metric)
        self._write()

    def window(self, moment: Moment) -> None:
        """Take in one window; see `Onlooker`."""
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
        """Take in one ended repeat; see `Onlooker`. Of its steps, those of timed windows are counted."""
        labels = labels_of(record)
        self._counters["stratbench_repeats_total"].labels(**labels, status=record.status).inc()
        self._set({**gauge_values(record), "stratbench_under_way": 0.0}, labels)
        whole = {"stratbench_repeats_left": left.n_repeats, "stratbench_left_seconds": left.seconds}
        self._set(whole, {"experiment": labels["experiment"]})
        if steps is not None:
            histogram = self._histograms["stratbench_step_seconds"].labels(**labels)
            for seconds in (steps.end_s - steps.start_s)[~steps.warmup]:
                histogram.observe(float(seconds))
        self._write()

    def _set(self, values: Mapping[str, float | None], labels: Mapping[str, str]) -> None:
        for name, value in values.items():
            if value is not None:
                self._gauges[name].labels(**labels).set(value)

    def _write(self) -> None:
        self.page = generate_latest(self.registry)
        self._written_s = time.monotonic()

    def _add(self, metric: Metric) -> None:
        if metric.type == "gauge":
            self._gauges[metric.name] = Gauge(metric.name, metric.help, metric.labels, registry=self.registry)
        elif metric.type == "counter":
            self._counters[metric.name] = Counter(
                metric.name, metric.help, metric.labels, registry=self.registry
            )
        else:
            self._histograms[metric.name] = Histogram(
                metric.name, metric.help, metric.labels, buckets=metric.buckets, registry=self.registry
            )


class _Server(ThreadingHTTPServer):
    """Who reads badly or leaves early is no matter of the run's, whose output this process has."""

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing."""


@contextmanager
def serve_metrics(listener: socket.socket) -> Iterator[Exporter]:
    """Serve an exporter's metrics at `/metrics` on a listening socket, which closes when the context ends."""
    exporter = Exporter()

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


def gauge_values(record: Record) -> dict[str, float | None]:
    """Metrics of one repeat; None where it has no such figure."""
    cpu_s = record.cpu_s_per_step
    peaks = [peak for peak in record.peak_rss_bytes or () if peak is not None]
    return {
        "stratbench_throughput_examples_per_second": record.examples_per_s,
        "stratbench_payload_bytes_per_step": record.payload_bytes_per_step,
        "stratbench_tcp_bytes_per_step": record.tcp_bytes_per_step,
        "stratbench_exposed_communication_seconds": record.exposed_comm_s,
        "stratbench_update_error_ratio": record.equivalence.max_update_error if record.equivalence else None,
        "stratbench_peak_resident_bytes": max(peaks, default=None),
        "stratbench_cpu_seconds_per_step": None if cpu_s is None else sum(cpu_s),
    }
