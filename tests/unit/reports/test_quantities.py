"""Numbers as a person reads them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reports.quantities import MISSING, byte_count, count, digits, error, link_rate, seconds, times


@pytest.mark.parametrize(
    ("value", "output"),
    [
        (0, "0"),
        (1, "1.00"),
        (9.996, "10.0"),
        (99.96, "100"),
        (1234.4, "1,234"),
        (0.01234, "0.0123"),
        (-2.5, "-2.50"),
        (1e15, "1.00e+15"),
        (2e-9, "2.00e-09"),
        (math.inf, "∞"),
        (-math.inf, "-∞"),
        (math.nan, "not a number"),
    ],
)
def test_digits(value: float, output: str) -> None:
    assert digits(value) == output


@pytest.mark.parametrize(
    ("value", "output"),
    [
        (None, MISSING),
        (0, "0 s"),
        (1.5, "1.50 s"),
        (0.9996, "1.00 s"),
        (0.0263, "26.3 ms"),
        (4.2e-5, "42.0 µs"),
        (3e-9, "3.00 ns"),
        (7e-11, "0.0700 ns"),
        (-0.002, "-2.00 ms"),
    ],
)
def test_seconds(value: float | None, output: str) -> None:
    assert seconds(value) == output


@pytest.mark.parametrize(
    ("value", "output"),
    [(None, MISSING), (0, "0 B"), (999.7, "1.00 kB"), (33_554_432, "33.6 MB"), (5e13, "50.0 TB")],
)
def test_bytes_are_decimal(value: float | None, output: str) -> None:
    assert byte_count(value) == output


def test_the_others() -> None:
    assert (count(8.0), count(8.5), count(None)) == ("8", "8.50", MISSING)
    assert (error(0.0), error(3.21e-7), error(None)) == ("0", "3.2e-07", MISSING)
    assert (times(None), times(1.006, significant=4)) == (MISSING, "1.006\N{MULTIPLICATION SIGN}")


@given(st.floats(1e-12, 1e12))
def test_digits_are_within_half_a_unit_of_the_third(value: float) -> None:
    assert float(digits(value).replace(",", "")) == pytest.approx(value, rel=0.0051)


@pytest.mark.parametrize(
    ("mbit", "significant", "output"),
    [(None, 3, "no limit"), (10, 3, "10.0 Mbit/s"), (1000, 3, "1,000 Mbit/s"), (98.7, 2, "99 Mbit/s")],
)
def test_rates_of_links(mbit: float | None, significant: int, output: str) -> None:
    assert link_rate(mbit, significant=significant) == output
