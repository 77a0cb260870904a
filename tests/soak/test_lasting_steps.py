"""Share of confirmed steps of 5 % at 3 % noise that are withdrawn, and how soon one that is over ends."""

import logging

import numpy as np

from reports.history.change_points import analyse
from reports.history.lasting_changes import RECENT_DAYS, lasting
from reports.history.step_test import FloatArray, cleaned

LOG = logging.getLogger(__name__)
"""Shown as it goes on by `--log-cli-level=info`."""
N_SERIES, NOISE, LEAST = 40, 0.03, 0.035


def is_confirmed(logs: FloatArray, place: int) -> bool:
    """Return True if a step up near a place is confirmed within the last month, and not made up for."""
    nights = np.arange(len(logs), dtype=np.int64)
    changes = lasting(
        lambda n: analyse(nights[:n], np.exp(logs[:n]), least_effect=LEAST),
        nights,
        cleaned(nights % 7, np.exp(logs)).logs,
    )
    recent = [
        change.effect
        for change in changes.analysis.changes
        if change.state == "confirmed"
        and change.place >= place - 10
        and nights[-1] - change.confirmed_by <= RECENT_DAYS
    ]
    return sum(recent) >= LEAST


def test_confirmed_steps_are_withdrawn_in_one_of_twenty_at_most() -> None:
    rng = np.random.default_rng(13)
    n_confirmed = n_withdrawn = 0
    for _ in range(N_SERIES):
        place = int(rng.integers(30, 90))
        logs = rng.normal(0, NOISE, place + 50)
        logs[place:] += np.log(1.05)
        first = next((n for n in range(place + 3, place + 21) if is_confirmed(logs[:n], place)), None)
        if first is not None:
            n_confirmed += 1
            n_withdrawn += not all(is_confirmed(logs[:n], place) for n in range(first + 1, first + 30))
    LOG.info("confirmed within 20 nights: %d of %d, withdrawn: %d", n_confirmed, N_SERIES, n_withdrawn)
    assert n_confirmed >= 0.6 * N_SERIES
    assert n_withdrawn <= 0.05 * n_confirmed


def test_steps_that_are_over_end_soon() -> None:
    rng = np.random.default_rng(17)
    lasts = []
    for _ in range(20):
        logs = rng.normal(0, 0.02, 110)
        logs[60:70] += np.log(1.15)
        lasts.append(next(n for n in range(3, 41) if not is_confirmed(logs[: 70 + n], 60)))
    LOG.info("nights after the end of 10 nights 15 %% slower: %s", sorted(lasts))
    assert np.median(lasts) <= 4
    assert max(lasts) <= 10
