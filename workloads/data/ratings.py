"""Ratings as MovieLens has them, and who did not rate what."""

import io
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from workloads.data.files import DATA, read_text
from workloads.errors import WorkloadError

Ids = npt.NDArray[np.int64]
_FIELDS = ("user", "item", "rating", "time")


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratings:
    """Who rated what; users and items are numbered from 0, in the order of their ids.

    Args:
        users: [n].
        items: [n].
        n_users: different ones. n_items: different ones.
    """

    users: Ids
    items: Ids
    n_users: int
    n_items: int


def read_ratings(path: Path) -> Ratings:
    """Read lines `user::item::rating::time`, as in `ratings.dat` of MovieLens-1M and -10M.

    Raises:
        WorkloadError: when a line is another one.
    Source:
        README of MovieLens-1M, https://files.grouplens.org/datasets/movielens/ml-1m-README.txt.
    """
    text = read_text(path).replace("::", ",")
    try:
        table = np.loadtxt(io.StringIO(text), delimiter=",", ndmin=2, usecols=range(len(_FIELDS)))
    except ValueError as error:
        message = f"data must have lines {'::'.join(_FIELDS)}, got in {path}: {error}; give a ratings.dat"
        raise WorkloadError(message, field=DATA) from error
    if not len(table):
        raise WorkloadError(f"data must have ratings, got none in {path}; give a ratings.dat", field=DATA)
    user_ids, users = np.unique(table[:, 0].astype(np.int64), return_inverse=True)
    item_ids, items = np.unique(table[:, 1].astype(np.int64), return_inverse=True)
    return Ratings(users=users, items=items, n_users=len(user_ids), n_items=len(item_ids))


def not_rated(ratings: Ratings, users: Ids, rng: np.random.Generator) -> Ids:
    """Draw for each of these users an item that they did not rate, all with the same probability.

    Args:
        users: [n], each with an item that is left.
    Returns:
        items [n].
    Raises:
        WorkloadError: when a user rated everything.
    """
    counts = np.bincount(ratings.users, minlength=ratings.n_users)
    if (counts[users] >= ratings.n_items).any():
        message = f"data must leave each user an item without rating, got one who rated all {ratings.n_items}"
        raise WorkloadError(f"{message}; give a larger ratings.dat", field=DATA)
    rated = np.unique(ratings.users * ratings.n_items + ratings.items)
    items = np.zeros(len(users), np.int64)
    left = np.arange(len(users))
    while len(left):
        items[left] = rng.integers(ratings.n_items, size=len(left))
        keys = users[left] * ratings.n_items + items[left]
        place = np.minimum(np.searchsorted(rated, keys), len(rated) - 1)
        left = left[rated[place] == keys]
    return items
