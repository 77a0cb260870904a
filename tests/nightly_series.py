"""Nightly series whose changes are known: steps, drift, weekdays, odd nights, gaps and noise."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

Kind = Literal["nothing", "step", "two steps", "drift", "step on drift"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Nightly:
    """A series and what was put into it.

    Attributes:
        nights: days that have a value; `nights % 7` is 5 or 6 on weekends.
        errors: standard error of each night's logarithm, by its own repeats.
        steps: first night of each step, and change of the logarithm.
        drifts: True if it drifts.
    """

    nights: npt.NDArray[np.int64]
    values: npt.NDArray[np.float64]
    errors: npt.NDArray[np.float64]
    steps: tuple[tuple[int, float], ...]
    drifts: bool


def drawn(
    kind: Kind,
    seed: int,
    *,
    n_nights: int = 150,
    size: float | None = None,
    n_after: int | None = None,
    noise: float = 0.02,
    is_plain: bool = False,
    correlation: float = 0.0,
) -> Nightly:
    """Draw a series.

    Args:
        size: size of steps, as a fraction; 5 to 20 % by default. The direction is random.
        n_after: measured nights from the step on; at least 8 by default.
        noise: standard deviation of a night's logarithm.
        is_plain: True for a series without weekday effects, odd nights and gaps.
        correlation: correlation of a night with the one before.
    """
    rng = np.random.default_rng([seed, len(kind)])
    nights = np.arange(n_nights, dtype=np.int64)
    steps = _steps(rng, kind, n_nights, size, n_after)
    logs = np.full(n_nights, rng.uniform(-3, 8))
    for night, effect in steps:
        logs[night:] += effect
    drifts = "drift" in kind
    if drifts:
        length = int(rng.integers(150, 251))
        begins = int(rng.integers(-length // 2, max(1, n_nights - 60)))
        logs += rng.choice([-1, 1]) * rng.uniform(0.06, 0.12) * np.clip((nights - begins) / length, 0, 1)
    logs += _noise(rng, n_nights, noise, correlation)
    present = np.ones(n_nights, dtype=bool)
    if not is_plain:
        logs += np.where(nights % 7 >= 5, rng.choice([-1, 1]) * 0.015, 0.0)
        odd = rng.random(n_nights) < 1 / 30
        logs[odd] += np.log(rng.uniform(0.7, 1.5, odd.sum()))
        present = _measured(rng, n_nights, n_after)
    errors = 0.3 * noise * np.exp(rng.normal(0, 0.3, n_nights))
    return Nightly(
        nights=nights[present],
        values=np.exp(logs[present]),
        errors=errors[present],
        steps=steps,
        drifts=drifts,
    )


def _steps(
    rng: np.random.Generator, kind: Kind, n_nights: int, size: float | None, n_after: int | None
) -> tuple[tuple[int, float], ...]:
    def effect() -> float:
        log = float(np.log1p(rng.uniform(0.05, 0.20) if size is None else size))
        return log if rng.random() < 0.5 else -log

    last = n_nights - 8
    if kind in ("step", "step on drift"):
        night = n_nights - n_after if n_after is not None else int(rng.integers(20, last + 1))
        return ((night, effect()),)
    if kind == "two steps":
        first = int(rng.integers(20, n_nights - 30))
        return ((first, effect()), (int(rng.integers(first + 14, last + 1)), effect()))
    return ()


def _noise(
    rng: np.random.Generator, n_nights: int, noise: float, correlation: float
) -> npt.NDArray[np.float64]:
    drawn_noise = rng.normal(0, noise, n_nights)
    for night in range(1, n_nights) if correlation else ():
        own = np.sqrt(1 - correlation**2) * drawn_noise[night]
        drawn_noise[night] = correlation * drawn_noise[night - 1] + own
    return drawn_noise


def _measured(rng: np.random.Generator, n_nights: int, n_after: int | None) -> npt.NDArray[np.bool_]:
    """Nights that were measured: single ones are missing, and some weeks, but none that count as after."""
    present = rng.random(n_nights) > 0.04
    for _ in range(rng.poisson(n_nights / 120)):
        begins = int(rng.integers(0, n_nights))
        present[begins : begins + int(rng.integers(2, 10))] = False
    present[-(n_after or 1) :] = True
    return np.asarray(present)
