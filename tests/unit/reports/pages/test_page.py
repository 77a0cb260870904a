"""The glossary of a page, held against the statistics that it describes."""

import re
from functools import cache

import numpy as np
import pytest

from harness.records.comparison import PairedRatios
from reports.compare import build
from reports.pages.page import to_html
from reports.statistics import paired_ratio, permutation_p, ratio, sign_flip_p


@cache
def page() -> str:
    return to_html(build([]))


def named(pattern: str) -> int:
    """The number that a sentence of the page names."""
    (number,) = re.findall(pattern, page())
    return int(number)


def logs(n: int) -> list[float]:
    return np.random.default_rng(n).normal(0.02, 0.05, size=n).tolist()


@pytest.mark.parametrize("beyond", [-1, 0])
def test_signs_are_permuted_from_the_number_on_that_is_named(beyond: int) -> None:
    values = logs(named(r"from (\d+) repeats on that of a permutation of signs") + beyond)
    p = paired_ratio(PairedRatios(logs=tuple(values))).p_value
    assert (p == sign_flip_p(values)) is (beyond == 0)


@pytest.mark.parametrize("beyond", [-1, 0])
def test_labels_are_permuted_from_the_number_on_that_is_named(beyond: int) -> None:
    n = named(r"from (\d+) repeats of each on that of a permutation of labels") + beyond
    top, bottom = np.exp(logs(n)).tolist(), np.exp(logs(n + 10)[:n]).tolist()
    assert (ratio(top, bottom).p_value == permutation_p(top, bottom)) is (beyond == 0)


@pytest.mark.parametrize("beyond", [-1, 0])
def test_intervals_are_from_the_number_on_that_is_named(beyond: int) -> None:
    n = named(r"Below (\d+) repeats there is none") + beyond
    lead = paired_ratio(PairedRatios(logs=tuple(logs(n))))
    assert (lead.interval is not None) is (beyond == 0)
