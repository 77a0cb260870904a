"""Change points on real noise: figures of runs that were recorded one after the other, as nights."""

import json
import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from reports.history.change_points import analyse
from reports.history.figures import METRICS
from reports.history.step_test import FloatArray, cleaned

LOG = logging.getLogger(__name__)
"""Shown as it goes on by `--log-cli-level=info`."""
RECORDED = json.loads(Path(__file__).with_name("recorded_nights.json").read_text())
N_NIGHTS = len(RECORDED["began"])
NIGHTS = np.arange(N_NIGHTS, dtype=np.int64)

N_BEFORE = 20
"""Nights before the first verdict."""
N_ORDERS = 20
STORE = 480
N_STEPS, N_AFTER, ASIDE = 100, 8, 3
LEAST_STEP, MOST_STEP, SIGMAS = 0.05, 0.20, 2.5
"""The smallest step that must be found is 5 % where nights differ by 2 %, or 2.5 of what others differ by."""


@dataclass(frozen=True)
class Recorded:
    """A series.

    Attributes:
        values, errors: [n_nights]; errors are standard errors of the logarithms, if known.
    """

    workload: str
    strategy: str
    metric: str
    values: FloatArray
    errors: FloatArray | None

    @property
    def noise(self) -> float:
        """Standard deviation of a night's logarithm, as the analysis sees it."""
        return float(np.median(cleaned(NIGHTS % 7, self.values, self.errors).sigma))

    def confirmed(
        self, order: Sequence[int] | None = None, *, n: int = N_NIGHTS, step: FloatArray | None = None
    ):
        """First nights of confirmed changes when there are n nights.

        Args:
            order: [n_nights], order of the recorded nights; unchanged by default.
            step: [n_nights], amounts added to the logarithms.
        """
        arange = np.arange(N_NIGHTS) if order is None else np.asarray(order)
        values = self.values[arange] * (1.0 if step is None else np.exp(step))
        errors = None if self.errors is None else self.errors[arange]
        analysis = analyse(
            NIGHTS[:n],
            values[:n],
            None if errors is None else errors[:n],
            least_effect=METRICS[self.metric].least_effect,
        )
        return [change.night for change in analysis.changes if change.state == "confirmed"]


def series_of(document: dict) -> Recorded:
    errors = np.array([np.nan if error is None else error for error in document["errors"]])
    return Recorded(
        workload=document["workload"],
        strategy=document["strategy"],
        metric=document["metric"],
        values=np.array(document["values"]),
        errors=None if np.isnan(errors).all() else np.where(np.isnan(errors), np.nanmedian(errors), errors),
    )


ALL = [series_of(series) for series in RECORDED["series"]]
MOVING = [series for series in ALL if series.metric in ("rate", "ratio")]


def alarms_of(series: Recorded, order: Sequence[int] | None) -> int:
    """Number of reported changes, night after night; one that moves by a week is the same."""
    messages: list[int] = []
    for n in range(N_BEFORE, N_NIGHTS + 1):
        messages += [
            night for night in series.confirmed(order, n=n) if all(abs(night - old) > 7 for old in messages)
        ]
    return len(messages)


def a_month(alarms: int, n_orders: int = 1) -> float:
    """Alarms of a store of 480 such series in thirty nights."""
    return alarms / n_orders * STORE / len(ALL) * 30 / (N_NIGHTS - N_BEFORE)


def test_at_least_sixty_nights_are_recorded():
    assert N_NIGHTS >= 60


def test_unchanged_code_alarms_at_most_once_in_thirty_nights():
    in_order = [alarms_of(series, None) for series in ALL]
    for series, alarms in zip(ALL, in_order, strict=True):
        LOG.info(
            "%s %s %s: noise %.1f %%, %d alarms",
            series.workload,
            series.strategy,
            series.metric,
            100 * series.noise,
            alarms,
        )
    as_recorded = a_month(sum(in_order))
    rng = np.random.default_rng(7)
    orders = [rng.permutation(N_NIGHTS) for _ in range(N_ORDERS)]
    in_other_orders = a_month(sum(alarms_of(series, order) for order in orders for series in ALL), N_ORDERS)
    LOG.info("alarms a month: %.2f as recorded, %.2f in other orders", as_recorded, in_other_orders)
    assert as_recorded <= 1
    assert in_other_orders <= 1


def counts(
    series: Recorded, sizes: FloatArray, rng: np.random.Generator, *, in_order: bool
) -> tuple[int, int, int]:
    """Steps that were found, those that were missed, and what was found where there is none."""
    n_found = n_missed = n_false = 0
    for size in sizes:
        place = int(rng.integers(N_BEFORE, N_NIGHTS - N_AFTER + 1))
        step = np.where(place <= NIGHTS, rng.choice([-1, 1]) * np.log1p(size), 0.0)
        left = series.confirmed(None if in_order else rng.permutation(N_NIGHTS), step=step)
        near = [night for night in left if abs(night - place) <= ASIDE]
        n_found, n_missed, n_false = (
            n_found + bool(near),
            n_missed + (not near),
            n_false + len(left) - bool(near),
        )
    return n_found, n_missed, n_false


def test_steps_that_are_put_in_are_found_and_little_else():
    rng = np.random.default_rng(11)
    for in_order in (True, False):
        sums = np.zeros(3, dtype=int)
        for series in MOVING:
            larger = max(1.0, SIGMAS * series.noise / LEAST_STEP)
            alarms = counts(
                series, larger * rng.uniform(LEAST_STEP, MOST_STEP, N_STEPS), rng, in_order=in_order
            )
            LOG.info(
                "%s %s %s, steps from %.0f %%: %d found, %d missed, %d false",
                series.workload,
                series.strategy,
                series.metric,
                100 * larger * LEAST_STEP,
                *alarms,
            )
            sums += alarms
        n_found, n_missed, n_false = sums
        recall, precision = n_found / (n_found + n_missed), n_found / (n_found + n_false)
        LOG.info(
            "%s: recall %.3f, precision %.3f",
            "as recorded" if in_order else "in other orders",
            recall,
            precision,
        )
        assert recall >= 0.9
        assert precision >= 0.95
