import re

import pytest

from harness.measure.prometheus import LABELS, METRICS, PREFIX, metric_of
from reports.rows.row import repeat_gauges

ALL = (*METRICS, *map(metric_of, repeat_gauges()))


@pytest.mark.parametrize("item", ALL, ids=lambda item: item.name)
def test_metrics_follow_the_naming_rules(item) -> None:
    assert re.fullmatch(rf"{PREFIX}[a-z][a-z_]*", item.name)
    assert (item.type == "counter") == item.name.endswith("_total")
    assert not re.search(r"(_ms|_millis|_mb|_kb|_us)(_|$)", item.name)
    of_a_strategy, of_the_run = set(LABELS), {"experiment"}
    assert set(item.labels) in (of_a_strategy, {*of_a_strategy, "status"}, of_the_run)
    assert (item.type == "histogram") == bool(item.buckets)
    assert list(item.buckets) == sorted(item.buckets)


def test_names_are_unique() -> None:
    assert len({item.name for item in ALL}) == len(ALL)


def test_gauges_of_repeats_are_those_that_dashboards_know() -> None:
    assert {gauge.name for gauge in repeat_gauges()} >= {
        "throughput_examples_per_second",
        "payload_bytes_per_step",
        "tcp_bytes_per_step",
        "exposed_communication_seconds",
        "update_error_ratio",
        "peak_resident_bytes",
        "cpu_seconds_per_step",
    }
