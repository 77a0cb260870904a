"""A case of `quickstart` with the engine's own step times, in few windows; docs/pytest.md shows this test."""

import pytest

pytestmark = pytest.mark.ray


def test_all_reduce(strategy_benchmark):
    result = strategy_benchmark(
        "quickstart", workload="digits-cnn", strategy="all-reduce", workers=2, settings={"measure.repeats": 1}
    )
    assert result.payload_bytes_per_step < 400_000
