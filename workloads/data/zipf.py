"""Ids whose frequencies fall as those of words and items do: a few very often, most hardly ever."""

import numpy as np
import numpy.typing as npt

_EXPONENT = 1.1


def zipf_ids(rng: np.random.Generator, n_ids: int, *, size: tuple[int, ...]) -> npt.NDArray[np.int32]:
    """Draw ids 0 to n_ids - 1 with probability nearly proportional to 1 / (id + 1)^1.1.

    The discrete law is drawn through the inverse of the continuous one over [1, n_ids + 1), rounded down:
    no table of n_ids probabilities is made.

    Args:
        rng: draws.
        n_ids: how many there are.
        size: shape of the result.
    Source:
        Zipf's law; inverse transform of the bounded Pareto distribution.
    """
    tail = (n_ids + 1.0) ** (1.0 - _EXPONENT)
    ranks = (1.0 - rng.random(size) * (1.0 - tail)) ** (1.0 / (1.0 - _EXPONENT))
    ids: npt.NDArray[np.int32] = np.minimum(ranks.astype(np.int64) - 1, n_ids - 1).astype(np.int32)
    return ids
