"""Serves `/metrics` for Prometheus on this machine while a run goes on."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, MetricsHandler

from harness.records.metrics import METRICS, Metric
from harness.records.record import Record
from harness.records.steps_file import Steps


class Exporter:
    """The metrics of `harness.records.metrics`, in a registry of their own.

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
            steps: its steps; those of timed windows are counted.
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
def serve_metrics(listener: socket.socket) -> Iterator[Exporter]:
    """Serve an exporter's metrics at `/metrics` on a listening socket, which closes when the context ends."""
    exporter = Exporter()
    handler = MetricsHandler.factory(exporter.registry)
    with ThreadingHTTPServer(listener.getsockname(), handler, bind_and_activate=False) as server:
        server.socket.close()
        server.socket = listener
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield exporter
        finally:
            server.shutdown()
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
