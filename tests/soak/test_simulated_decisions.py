"""Error rates of decisions of runs, drawn from repeats of a strategy compared with itself."""

import itertools
import json
import logging
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from harness.experiment.model import Until
from harness.records.comparison import CONFIDENCE, SEQUENTIAL_CONFIDENCE, PairedRatios, repeated_mean
from harness.run.further_repeats import is_narrow, looks
from reports.contrasts import SIGNIFICANCE
from reports.statistics import paired_ratio

LOG = logging.getLogger(__name__)
"""Shown as it goes on by `--log-cli-level=info`."""
RECORDED = json.loads(Path(__file__).with_name("recorded_twins.json").read_text())
RUNS = [np.array(run["log_ratios"]) for run in RECORDED["runs"]]
"""Logarithms of the ratio of a strategy to itself, one for each repeat, in the order in which they ran."""

N_DRAWS = 2000
WRONG, TOLERANCE = 0.05, 0.015
UNTIL = Until(ratio_ci=0.03, at_most=600.0)
N_REPEATS = (4, 7, 12, 20)
EFFECTS = (0.01, 0.02, 0.03, 0.05, 0.07, 0.10)

Repeats = npt.NDArray[np.float64]
Decide = Callable[[Repeats], bool]


def drawn(draw: np.random.Generator, n: int) -> Repeats:
    """So many repeats, spreads of minutes together as they were.

    Which of the two names comes first is chance in each: both are fresh processes of the same, and who opens
    first is chance, too.
    """
    chosen: list[Repeats] = []
    while sum(map(len, chosen)) < n:
        run = RUNS[draw.integers(len(RUNS))]
        start = draw.integers(len(run))
        chosen.append(draw.choice((-1.0, 1.0), len(run)) * np.roll(run, -start))
    return np.concatenate(chosen)[:n]


def differs(logs: Repeats, confidence: float = CONFIDENCE) -> bool:
    """Return True if a report would call the difference significant."""
    ratio = paired_ratio(PairedRatios(logs=tuple(logs.tolist())), confidence=confidence)
    assert ratio.interval is not None
    assert ratio.p_value is not None
    return not ratio.interval.contains(1.0) and ratio.p_value <= SIGNIFICANCE


def differs_in_the_end(logs: Repeats) -> bool:
    """The same where repeats go on until the interval is narrow, or there are no more."""
    n = next(
        (n for n in looks(4) if n < len(logs) and is_narrow(repeated_mean(logs[:n].tolist()), UNTIL)),
        len(logs),
    )
    return differs(logs[:n], SEQUENTIAL_CONFIDENCE)


def share(decide: Decide, n: int, effect: float = 0.0) -> float:
    """In how many runs of so many repeats, one name slower by the effect, a difference is found."""
    draw = np.random.default_rng(n)
    return float(np.mean([decide(drawn(draw, n) + math.log1p(effect)) for _ in range(N_DRAWS)]))


def test_there_are_repeats_enough() -> None:
    assert sum(map(len, RUNS)) >= 60


@pytest.mark.parametrize("n", N_REPEATS)
def test_two_names_of_one_thing_differ_in_a_twentieth_of_runs(n: int) -> None:
    fraction = share(differs, n)
    LOG.info("%d repeats: %.1f %% differ by chance", n, 100 * fraction)
    assert fraction == pytest.approx(WRONG, abs=TOLERANCE)


@pytest.mark.parametrize("n", [12, 20, 52])
def test_so_they_do_where_repeats_go_on_until_the_interval_is_narrow(n: int) -> None:
    fraction = share(differs_in_the_end, n)
    LOG.info("until ±3 %%, at most %d repeats: %.1f %% differ by chance", n, 100 * fraction)
    # The intervals of such runs are those of 97 %, which looking often makes of 95.
    assert 0.01 <= fraction <= WRONG + TOLERANCE


def test_more_repeats_and_larger_effects_are_found_more_often() -> None:
    curve = {(n, effect): share(differs, n, effect) for n in N_REPEATS for effect in EFFECTS}
    for n in N_REPEATS:
        LOG.info("%d repeats: %s", n, ", ".join(f"{e:.0%} {curve[n, e]:.0%}" for e in EFFECTS))
    for (fewer, more), effect in itertools.product(itertools.pairwise(N_REPEATS), EFFECTS):
        assert curve[more, effect] >= curve[fewer, effect] - TOLERANCE
