"""Least squares in which no night costs more than an outlier, so that odd nights pay alike in every model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from reports.history.noise import FloatArray

CAP = 6.0
"""Cost of a night that fits no model, as half a square of standard deviations: 3.5 of them."""
_ROUNDS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Fits:
    """Several fits of the same nights.

    Attributes:
        costs: [b], half the sum of capped squares and of the penalty: a negative log likelihood.
        coefficients: [b, p].
    """

    costs: FloatArray
    coefficients: FloatArray


def fit(designs: FloatArray, penalty: FloatArray, logs: FloatArray, included: FloatArray) -> Fits:
    """Fit models by least squares over the nights that do not cost the cap, until these stay the same.

    Args:
        designs: [b, n, p], each row divided by its night's standard deviation.
        penalty: [p], of squares of coefficients: one over the variance that each is expected to have.
        logs: [n], likewise divided.
        included: [b, n], 1 for the nights to begin with, 0 for others.
    """
    ridge, weights = np.diag(penalty), included
    for _ in range(_ROUNDS):
        weighted = designs * weights[:, :, None]
        normal = np.swapaxes(weighted, 1, 2) @ designs + ridge
        coefficients = np.linalg.solve(normal, (weighted * logs[:, None]).sum(1)[:, :, None])[:, :, 0]
        halves = (logs - (designs @ coefficients[:, :, None])[:, :, 0]) ** 2 / 2
        fitting = (halves < CAP).astype(np.float64)
        if (fitting == weights).all():
            break
        weights = fitting
    costs = np.minimum(halves, CAP).sum(1) + (coefficients**2 * penalty).sum(1) / 2
    return Fits(costs=costs, coefficients=coefficients)
