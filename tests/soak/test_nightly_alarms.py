"""False alarms on unchanged series, night after night, and steps that are found, with their delay."""

import sys

import numpy as np
from nightly_series import drawn

from reports.history.change_points import analyse

N_SERIES, N_NIGHTS, N_BEFORE, WINDOW = 480, 60, 120, 400


def confirmed_at(series, n):
    """First nights of the changes that are confirmed when there are n nights."""
    first = max(0, n - WINDOW)
    analysis = analyse(series.nights[first:n], series.values[first:n], series.errors[first:n])
    return [change.night for change in analysis.changes if change.state == "confirmed"]


def test_an_unchanged_store_alarms_at_most_once_in_thirty_nights(capsys):
    alarms = 0
    for seed in range(N_SERIES):
        series = drawn("nothing", 500_000 + seed, n_nights=N_BEFORE + N_NIGHTS)
        messages = []
        for n in range(N_BEFORE, len(series.nights) + 1):
            messages += [
                night for night in confirmed_at(series, n) if all(abs(night - old) > 7 for old in messages)
            ]
        alarms += len(messages)
    per_month = alarms * 30 / N_NIGHTS
    with capsys.disabled():
        sys.stdout.write(
            f"\n{alarms} alarms in {N_SERIES} series and {N_NIGHTS} nights: {per_month:.2f} a month\n"
        )
    assert per_month <= 1


def test_steps_by_size_and_nights_after_them(capsys):
    shares = {}
    for size, n_after in [(0.05, 8), (0.05, 12), (0.05, 16), (0.07, 8), (0.10, 8), (0.20, 8)]:
        result = 0
        for seed in range(300):
            series = drawn(
                "step", 600_000 + seed, n_nights=(90, 150, 365)[seed % 3], size=size, n_after=n_after
            )
            (night, _) = series.steps[0]
            result += any(abs(other - night) <= 3 for other in confirmed_at(series, len(series.nights)))
        shares[size, n_after] = result / 300
    with capsys.disabled():
        sys.stdout.write(f"\nfound, by size and nights after: {shares}\n")
    assert np.mean([share for (size, _), share in shares.items() if size > 0.05]) >= 0.98
    assert shares[0.05, 12] >= 0.9
