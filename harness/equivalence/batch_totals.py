"""Totals of forward and backward on a batch, whole or in shards, and how far apart two are; no TensorFlow."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf, isfinite

import numpy as np

from harness.equivalence.yardstick import GROUP_SHARE, Array, is_inexact, largest_difference, widened


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """What crosses one boundary: a gradient, or the new value of forward state.

    Attributes:
        rows: row ids of a sparse gradient, None of a dense one.
    """

    variable: str
    values: Array
    rows: Array | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What forward and backward make of a batch, as a whole or of all its shards together.

    Attributes:
        gradients: in the order of the step's boundaries, as `state` and `tallies`.
        tallies: what is added to forward state that the step itself never reads, such as a metric's.
    """

    loss: float
    gradients: tuple[Crossing, ...]
    state: tuple[Crossing, ...] = ()
    tallies: tuple[Crossing, ...] = ()

    def is_finite(self) -> bool:
        """Whether all its numbers are."""
        return isfinite(self.loss) and all(isfinite(_largest(c.values)) for c in self._all())

    @classmethod
    def of_one_shard(cls, few: "Totals", n_few: int, many: "Totals", n_many: int) -> "Totals":
        """What sums over fewer and over more shards come to for one, if a part of each shard is the same.

        Such a part (a regularisation) counts once for each shard, so that totals are linear in their number.
        """
        of_many = (1 - n_few) / (n_many - n_few)
        of_few = 1 - of_many
        return cls(
            loss=of_few * few.loss + of_many * many.loss,
            gradients=tuple(
                _weighted(a, of_few, b, of_many) for a, b in zip(few.gradients, many.gradients, strict=True)
            ),
            state=few.state,
            tallies=few.tallies,
        )

    def _all(self) -> Iterable[Crossing]:
        return (*self.gradients, *self.state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Differences:
    """How far other totals are from the whole batch's, each relative to what is whole.

    Attributes:
        gradients: trainable → largest difference. state: forward state → the same. tallies: of that which the
            step itself never reads; they tell how it went and change nothing.
    """

    loss: float
    gradients: Mapping[str, float]
    state: Mapping[str, float]
    tallies: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def of(cls, whole: Totals, other: Totals) -> "Differences":
        """The differences of two totals of the same step."""
        pairs = [_dense(*pair) for pair in zip(whole.gradients, other.gradients, strict=True)]
        largest = [_largest(wanted) for wanted, _ in pairs]
        least = GROUP_SHARE * max(largest, default=0.0)
        gradients: dict[str, float] = {}
        for crossing, (wanted, got), own in zip(whole.gradients, pairs, largest, strict=True):
            difference = _relative(wanted, got, max(own, least))
            gradients[crossing.variable] = max(difference, gradients.get(crossing.variable, 0.0))
        return cls(
            loss=_relative(np.asarray(whole.loss), np.asarray(other.loss), abs(whole.loss)),
            gradients=gradients,
            state=_of_own_size(whole.state, other.state),
            tallies=_of_own_size(whole.tallies, other.tallies),
        )

    @classmethod
    def largest_of(cls, several: Sequence["Differences"]) -> "Differences":
        """The largest of each."""
        first = several[0]
        return cls(
            loss=max(each.loss for each in several),
            gradients={name: max(each.gradients[name] for each in several) for name in first.gradients},
            state={name: max(each.state[name] for each in several) for name in first.state},
        )

    def worst_gradient(self) -> tuple[str | None, float]:
        """The trainable with the largest difference."""
        return max(self.gradients.items(), key=lambda item: item[1], default=(None, 0.0))

    def worst_state(self) -> tuple[str | None, float]:
        """The forward state with the largest difference."""
        return max(self.state.items(), key=lambda item: item[1], default=(None, 0.0))

    def worst_tally(self) -> tuple[str | None, float]:
        """What is added to the forward state with the largest difference of those that nobody reads."""
        return max(self.tallies.items(), key=lambda item: item[1], default=(None, 0.0))

    def by_name(self) -> dict[tuple[str, str], float]:
        """All that change what is trained, by kind and variable."""
        return {
            ("loss", ""): self.loss,
            **{("gradient", name): value for name, value in self.gradients.items()},
            **{("state", name): value for name, value in self.state.items()},
        }


def _of_own_size(whole: Sequence[Crossing], other: Sequence[Crossing]) -> dict[str, float]:
    """Variable → largest difference, relative to the largest number of its own."""
    differences: dict[str, float] = {}
    for mine, theirs in zip(whole, other, strict=True):
        difference = _relative(mine.values, theirs.values, _largest(mine.values))
        differences[mine.variable] = max(difference, differences.get(mine.variable, 0.0))
    return differences


def _weighted(a: Crossing, of_a: float, b: Crossing, of_b: float) -> Crossing:
    if a.rows is None or b.rows is None:
        return Crossing(variable=a.variable, values=of_a * a.values + of_b * b.values)
    return Crossing(
        variable=a.variable,
        values=np.concatenate([of_a * a.values, of_b * b.values]),
        rows=np.concatenate([a.rows, b.rows]),
    )


def _dense(whole: Crossing, other: Crossing) -> tuple[Array, Array]:
    """Both gradients over the rows that either has; rows of neither are zero in both."""
    if whole.rows is None or other.rows is None:
        return whole.values, other.values
    rows, places = np.unique(np.concatenate([whole.rows, other.rows]), return_inverse=True)
    gradients = []
    for crossing, own in ((whole, places[: len(whole.rows)]), (other, places[len(whole.rows) :])):
        dense = np.zeros((len(rows), *crossing.values.shape[1:]), widened(crossing.values[:0]).dtype)
        np.add.at(dense, own, crossing.values)
        gradients.append(dense)
    return gradients[0], gradients[1]


def _relative(wanted: Array, got: Array, scale: float) -> float:
    if wanted.shape != got.shape:
        return inf
    if not is_inexact(wanted):
        return 0.0 if np.array_equal(wanted, got) else inf
    difference = largest_difference(got, wanted)
    if difference == 0.0:
        return 0.0
    return difference / scale if 0.0 < scale < inf else inf


def _largest(values: Array) -> float:
    return largest_difference(values, np.zeros_like(values))
