"""Serves `/metrics` for Prometheus on this machine while a run goes on."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from wsgiref.simple_server import WSGIServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, start_http_server

from harness.errors import UsageError
from harness.metrics import METRICS, Metric
from harness.records import Record
from harness.store import Steps

_HOST = "127.0.0.1"


class Exporter:
    """The metrics of `harness.metrics`, in a registry of their own.

    Attributes:
        registry: what `/metrics` shows.
    """

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._gauges: dict[str, Gauge] = {}
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        for metric in METRICS:
            self._add(metric)

    def observe(self, record: Record, steps: Steps | None = None) -> None:
        """Take in one ended repeat.

        Args:
            steps: its steps; those of the timed window are counted.
        """
        labels = {
            "experiment": record.experiment or "",
            "workload": record.workload,
            "strategy": record.strategy,
            "provider": record.provider,
        }
        self._counters["stratbench_repeats_total"].labels(**labels, status=record.status).inc()
        for name, value in _gauge_values(record).items():
            if value is not None:
                self._gauges[name].labels(**labels).set(value)
        if steps is not None:
            histogram = self._histograms["stratbench_step_seconds"].labels(**labels)
            for seconds in (steps.end_s - steps.start_s)[~steps.warmup]:
                histogram.observe(float(seconds))

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


@contextmanager
def serve_metrics(port: int) -> Iterator[Exporter]:
    """Serve an exporter's metrics at `http://127.0.0.1:PORT/metrics` until the context ends.

    Raises:
        UsageError: the port cannot be had.
    """
    exporter = Exporter()
    try:
        server, thread = start_http_server(port, addr=_HOST, registry=exporter.registry)
    except (OSError, OverflowError) as error:
        raise UsageError(
            f"must be a free port of {_HOST}, got {port} ({error}); choose another one", field="metrics_port"
        ) from error
    try:
        yield exporter
    finally:
        _stop(server, thread)


def _stop(server: WSGIServer, thread: threading.Thread) -> None:
    server.shutdown()
    server.server_close()
    thread.join()


def _gauge_values(record: Record) -> dict[str, float | None]:
    peaks = [peak for peak in record.peak_rss_bytes or () if peak is not None]
    return {
        "stratbench_throughput_examples_per_second": record.examples_per_s,
        "stratbench_payload_bytes_per_step": record.payload_bytes_per_step,
        "stratbench_tcp_bytes_per_step": record.tcp_bytes_per_step,
        "stratbench_exposed_communication_seconds": record.exposed_comm_s,
        "stratbench_update_error_ratio": record.equivalence.max_update_error if record.equivalence else None,
        "stratbench_peak_resident_bytes": max(peaks, default=None),
    }
