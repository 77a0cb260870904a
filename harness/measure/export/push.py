"""Gives what a run found to a Prometheus Pushgateway, which keeps it until a later run finds something."""

from collections.abc import Iterable
from http.client import HTTPException
from urllib.error import URLError

from prometheus_client import CollectorRegistry, Gauge, pushadd_to_gateway

from harness.errors import UsageError
from harness.measure.export.exporter import gauge_values, labels_of
from harness.measure.export.metrics import metric
from harness.records.record import Record

_JOB = "stratbench"
_TIMEOUT_S = 10.0


def push_newest(records: Iterable[Record], url: str) -> int:
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
    newest = {tuple(labels_of(each).items()): each for each in records if each.status == "ok"}
    for labels, record in newest.items():
        registry = CollectorRegistry()
        for name, value in gauge_values(record).items():
            if value is not None:
                Gauge(name, metric(name).help, registry=registry).set(value)
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
