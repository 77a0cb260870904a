import re

import pytest

from harness.measure.prometheus import LABELS, METRICS, PREFIX, metric


@pytest.mark.parametrize("item", METRICS, ids=lambda item: item.name)
def test_metrics_follow_the_naming_rules(item) -> None:
    assert re.fullmatch(rf"{PREFIX}[a-z][a-z_]*", item.name)
    assert (item.type == "counter") == item.name.endswith("_total")
    assert not re.search(r"(_ms|_millis|_mb|_kb|_us)(_|$)", item.name)
    of_a_strategy, of_the_run = set(LABELS), {"experiment"}
    assert set(item.labels) in (of_a_strategy, {*of_a_strategy, "status"}, of_the_run)
    assert (item.type == "histogram") == bool(item.buckets)
    assert list(item.buckets) == sorted(item.buckets)


def test_names_are_unique_and_findable() -> None:
    assert len({item.name for item in METRICS}) == len(METRICS)
    assert metric("stratbench_step_seconds").type == "histogram"
    with pytest.raises(KeyError):
        metric("stratbench_nothing")
