""" """

import pytest

from harness.cluster import LinkLimit, ShapeLink, WorkerLink, rate_between


def test_a_worker_has_its_own_limit_or_that_of_all() -> None:
    different = ((1, WorkerLink(rate_mbit=10.0, burst_kb=8)), (2, WorkerLink(rate_mbit=None)))
    limits = ShapeLink(rate_mbit=100.0, burst_kb=64, workers=different).limits(4)
    assert limits == (
        LinkLimit(rate_mbit=100.0, burst_bytes=64_000),
        LinkLimit(rate_mbit=10.0, burst_bytes=8_000),
        None,
        LinkLimit(rate_mbit=100.0, burst_bytes=64_000),
    )


def test_a_burst_of_all_holds_where_a_worker_has_none_of_its_own() -> None:
    (limit,) = ShapeLink(burst_kb=64, workers=((0, WorkerLink(rate_mbit=10.0)),)).limits(1)
    assert limit == LinkLimit(rate_mbit=10.0, burst_bytes=64_000)


@pytest.mark.parametrize("rate_mbit", [0.5, 1, 10, 70, 72, 100, 144, 1000, 10_000])
def test_a_burst_that_nobody_chose_holds_packets_and_little_of_a_second(rate_mbit: float) -> None:
    (limit,) = ShapeLink(rate_mbit=rate_mbit).limits(1)
    assert limit is not None
    assert limit.burst_bytes >= 10 * 1514
    assert limit.burst_bytes <= max(16_000, rate_mbit * 1e6 / 8 * 0.008)
    # From 72 Mbit/s on, the largest piece that TCP hands over passes whole.
    assert rate_mbit < 72 or limit.burst_bytes > 65_536 + 46 * 66


def test_the_slower_of_two_links_counts() -> None:
    fast, slow = ShapeLink(rate_mbit=100.0, workers=((1, WorkerLink(rate_mbit=10.0)),)).limits(2)
    assert rate_between(fast, slow) == rate_between(slow, fast) == 10.0
    assert rate_between(fast, None) == 100.0
    assert rate_between(None, None) is None
