"""Nights recorded on a real machine: how often they alarm, and which steps are found in them."""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from reports.history.change_points import LEAST_NIGHTS, analyse
from reports.history.figures import METRICS

RECORDED = json.loads(Path(__file__).with_name("recorded_nights.json").read_text())
N_ORDERS = 20
N_STEPS = 40
"""Of each series."""
N_AFTER, N_BEFORE = 8, 20
SERIES_NIGHTS_PER_ALARM = 480 * 30
NOISES = (0.01, 0.02, 0.03, 0.05, 1.0)
FloatArray = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A series.

    Attributes:
        logs: of its figures. errors: standard errors of these by their own repeats; None without.
    """

    name: str
    metric: str
    logs: FloatArray
    errors: FloatArray | None

    def confirmed(self, logs: FloatArray, order: Sequence[int]) -> list[int]:
        """First nights of confirmed changes, were the nights these."""
        nights = np.arange(len(order), dtype=np.int64)
        found = analyse(
            nights,
            np.exp(logs),
            None if self.errors is None else self.errors[list(order)],
            least_effect=METRICS[self.metric].least_effect,
        )
        return [change.night for change in found.changes if change.state == "confirmed"]

    @property
    def noise(self) -> float:
        """How far a night lies from the next one by chance, by a robust estimate."""
        return 1.4826 / np.sqrt(2) * float(np.median(np.abs(np.diff(self.logs))))


def recorded() -> list[Recorded]:
    return [
        Recorded(
            name=" ".join((each["workload"], each["strategy"], each["metric"])),
            metric=each["metric"],
            logs=np.array(each["logs"]),
            errors=None if None in each["errors"] else np.array(each["errors"]),
        )
        for each in RECORDED["series"]
    ]


SERIES = recorded()
N_NIGHTS = len(SERIES[0].logs)


def alarms(series: Recorded, order: Sequence[int]) -> list[int]:
    """Changes told night after night, each once."""
    told: list[int] = []
    logs = series.logs[list(order)]
    for n in range(LEAST_NIGHTS, len(order) + 1):
        fresh = series.confirmed(logs[:n], order[:n])
        told += [night for night in fresh if all(abs(night - old) > 7 for old in told)]
    return told


def test_sixty_nights_or_more_are_recorded():
    assert N_NIGHTS >= 60
    assert {series.metric for series in SERIES} >= {"rate", "ratio", "tcp_bytes", "peak_rss_bytes"}


@pytest.mark.parametrize("is_shuffled", [False, True], ids=["as they were", "in other orders"])
def test_nights_in_which_nothing_changed_alarm_at_most_once_in_thirty(is_shuffled, capsys):
    rng = np.random.default_rng(7)
    orders = [rng.permutation(N_NIGHTS) for _ in range(N_ORDERS)] if is_shuffled else [np.arange(N_NIGHTS)]
    told = Counter(
        {series.name: sum(len(alarms(series, order.tolist())) for order in orders) for series in SERIES}
    )
    n_judged = len(SERIES) * len(orders) * (N_NIGHTS - LEAST_NIGHTS + 1)
    per_month = told.total() * SERIES_NIGHTS_PER_ALARM / n_judged
    with capsys.disabled():
        sys.stdout.write(
            f"\n{told.total()} alarms in {len(SERIES)} series, {len(orders)} orders of {N_NIGHTS} nights: "
            f"{per_month:.2f} a month of 480 series; {+told}\n"
        )
    assert per_month <= 1


def test_steps_put_into_recorded_nights_are_found(capsys):
    rng = np.random.default_rng(8)
    hits, misses, wrong = Counter(), Counter(), Counter()
    for series in SERIES:
        noise = next(limit for limit in NOISES if series.noise <= limit)
        for _ in range(N_STEPS):
            night = int(rng.integers(N_BEFORE, N_NIGHTS - N_AFTER + 1))
            effect = rng.choice([-1, 1]) * np.log1p(rng.uniform(0.05, 0.20))
            logs = series.logs + np.where(np.arange(N_NIGHTS) >= night, effect, 0.0)
            found = series.confirmed(logs, range(N_NIGHTS))
            right = [other for other in found if abs(other - night) <= 3]
            hits[noise] += bool(right)
            misses[noise] += not right
            wrong[noise] += len(found) - bool(right)
    with capsys.disabled():
        for noise in NOISES:
            n_steps = hits[noise] + misses[noise]
            if n_steps:
                precision = hits[noise] / max(hits[noise] + wrong[noise], 1)
                sys.stdout.write(
                    f"\nnoise to {noise:.0%}: {n_steps} steps of 5 to 20 %: "
                    f"recall {hits[noise] / n_steps:.3f}, precision {precision:.3f}"
                )
        sys.stdout.write("\n")
    quiet = [noise for noise in NOISES if noise <= 0.02]
    n_hits = sum(hits[noise] for noise in quiet)
    assert n_hits >= 0.9 * sum(hits[noise] + misses[noise] for noise in quiet)
    assert n_hits >= 0.95 * sum(hits[noise] + wrong[noise] for noise in quiet)
