"""Timing of a rule over all workers' gradients."""

import pytest

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

from harness.worker.jobs import after_repeats
from harness.worker.process.job import JobState
from strategies.plan.aggregation import Aggregation


@pytest.mark.parametrize("n", [3, 20])
def test_a_rule_and_a_plain_mean_are_timed(monkeypatch, n):
    monkeypatch.setattr(after_repeats, "memory_left_bytes", lambda state: None)
    aggregation = Aggregation.of({"rule": "median", "f": 1, "pre": "none"}, n)
    seconds = after_repeats.aggregation_seconds(JobState(), aggregation, 10, "/device:CPU:0")
    assert all(0 < s < float("inf") for s in seconds)
