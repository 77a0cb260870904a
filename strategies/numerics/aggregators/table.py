"""One step of aggregation: finite contributions in their order, mixed if asked for, combined by a rule."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import tensorflow as tf

from strategies.numerics.aggregators.bulyan import bulyan
from strategies.numerics.aggregators.centered_clipping import centered_clipping
from strategies.numerics.aggregators.geometric_median import geometric_median
from strategies.numerics.aggregators.krum import krum
from strategies.numerics.aggregators.mean import mean, weighted_mean
from strategies.numerics.aggregators.mean_around_median import mean_around_median
from strategies.numerics.aggregators.median import median
from strategies.numerics.aggregators.minimum_diameter import minimum_diameter
from strategies.numerics.aggregators.mixing import bucketing, nearest_neighbour_mixing
from strategies.numerics.aggregators.trimmed_mean import trimmed_mean
from strategies.numerics.compressors.codec import StateSpec
from strategies.numerics.rows.counted import by_count
from strategies.numerics.rows.lexicographic import lexicographic_order
from strategies.numerics.rows.pairs import finite_and_squares
from strategies.numerics.rows.rows import Rows
from strategies.plan.aggregation import BUCKETING, CLIPPING, MEAN, MIXING, TOO_FEW_FINITE, Aggregation


@dataclass(frozen=True, slots=True, kw_only=True)
class Combined:
    """What comes of a step.

    Attributes:
        vector: [d]. chosen: bool [n], whose contributions it was made of. finite: bool [n].
        state: what the next step begins with, as `states` lists it.
    """

    vector: tf.Tensor
    chosen: tf.Tensor
    finite: tf.Tensor
    state: tuple[tf.Tensor, ...]


def states(aggregation: Aggregation, size: int, dtype: str) -> tuple[StateSpec, ...]:
    """What a rule keeps from step to step.

    Args:
        size: of a vector. dtype: float or double.
    """
    centre = StateSpec(name="centre", dims=(size,), dtype=dtype, common=True)
    turn = StateSpec(name="turn", dims=(), dtype="int64", common=True)
    return (
        *((centre,) if aggregation.rule == CLIPPING else ()),
        *((turn,) if aggregation.pre == BUCKETING else ()),
    )


def aggregate(
    vectors: Sequence[tf.Tensor],
    state: Sequence[tf.Tensor],
    *,
    aggregation: Aggregation,
    shares: Sequence[float],
    seed: int = 0,
) -> Combined:
    """Combine the contributions of n workers.

    Those that are not finite are left out, and count among the faulty ones. What comes of the others does not
    depend on their order, not even in its last digit.

    Args:
        vectors: [d] of each worker, float or double.
        state: of the step before, zeros at first.
        shares: of the examples, by which alone the plain mean weighs.
        seed: of what is drawn.
    Raises:
        tf.errors.InvalidArgumentError: too few contributions are finite, when the graph runs.
    """
    n, least = len(vectors), aggregation.least_finite
    finite, squares = finite_and_squares(vectors, distances=aggregation.takes_distances)
    n_finite = tf.math.count_nonzero(finite, dtype=tf.int32)
    order = lexicographic_order(vectors, finite)
    # In pieces that a graph's text has whole.
    told = [f"rule={aggregation.rule} needs {least}", TOO_FEW_FINITE, f"of {n} workers, got"]
    needed = tf.debugging.Assert(n_finite >= least, [*told, n_finite])
    with tf.control_dependencies([needed]):
        n_finite = tf.identity(n_finite)
        rows = Rows.of(vectors, tf.identity(order), n_finite, squares)
    step = _Step(rows=rows, n_finite=n_finite, asked=aggregation, shares=shares, state=state)
    turn = state[-1] if aggregation.pre == BUCKETING else None
    if aggregation.pre == MIXING:
        step = replace(step, rows=nearest_neighbour_mixing(rows, f=step.f))
    elif turn is not None:
        draw = tf.stack([tf.constant(seed, tf.int64), turn])
        step = replace(step, rows=bucketing(rows, size=aggregation.bucket_size, draw=draw))
    vector, places = _RULES[aggregation.rule](step)
    kept = ((vector,) if aggregation.rule == CLIPPING else ()) + (() if turn is None else (turn + 1,))
    return Combined(vector=vector, chosen=_counted(step.rows, places), finite=finite, state=kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """What a rule combines in a step.

    Attributes:
        n_finite: finite contributions, int32.
        shares, state: as for `aggregate`.
    """

    rows: Rows
    n_finite: tf.Tensor
    asked: Aggregation
    shares: Sequence[float]
    state: Sequence[tf.Tensor]

    @property
    def f(self) -> tf.Tensor:
        """Rows that may be faulty; contributions that are not finite were."""
        return tf.maximum(self.asked.f - (self.asked.n - self.n_finite), 0)

    @property
    def n_rounds_less(self) -> int:
        """Rounds that Bulyan makes less than n − 2f."""
        return 2 if self.asked.variant == "aggregathor" else 0

    def counts(self) -> dict[int, int]:
        """Finite contributions → rows that there are then; first when all are finite."""
        asked = self.asked
        return {n: asked.n_rows(n) for n in range(asked.n, asked.least_finite - 1, -1)}

    def sorting(self, fn: Callable[[Rows, int], tf.Tensor]) -> "_Result":
        """A rule that must know how many rows there are, and how many of these may be faulty."""
        vector = by_count(
            self.rows, self.n_finite, self.counts(), lambda known, n: fn(known, self.asked.still_faulty(n))
        )
        return vector, None

    def mean(self) -> "_Result":
        """Rows that are means already have no share of their own."""
        if self.rows.mixing is not None or len(set(self.shares)) == 1:
            return mean(self.rows), None
        return weighted_mean(
            self.rows, tf.gather(tf.constant(self.shares, tf.float64), self.rows.order)
        ), None

    def geometric_median(self) -> "_Result":
        first, _ = self.sorting(lambda known, _: median(known))
        asked = self.asked
        return geometric_median(self.rows, first, iterations=asked.iterations, nu=asked.nu), None

    def centered_clipping(self) -> "_Result":
        asked, centre = self.asked, self.state[0]
        return centered_clipping(self.rows, centre, tau=asked.tau, iterations=asked.iterations), None

    def krum(self) -> "_Result":
        places = krum(self.rows, f=self.f, m=self.asked.m)
        return mean(self.rows.chosen(places, self.asked.m)), places

    def minimum_diameter(self) -> "_Result":
        places = minimum_diameter(self.rows, f=self.asked.f)
        return mean(self.rows.chosen(places, self.rows.n)), places

    def bulyan(self) -> "_Result":
        asked, less = self.asked, self.n_rounds_less
        places = bulyan(self.rows, f=self.f, rounds=self.rows.n_present - 2 * self.f - less)
        rounds = {n: count - 2 * asked.still_faulty(n) - less for n, count in self.counts().items()}
        vector = by_count(
            self.rows.chosen(places, max(rounds.values())),
            self.n_finite,
            rounds,
            lambda known, n: mean_around_median(known, count=known.n - 2 * asked.still_faulty(n)),
        )
        return vector, places


_Result: TypeAlias = tuple[tf.Tensor, tf.Tensor | None]
"""A vector, and the places of the rows that it was made of where these are not all."""
_RULES: Mapping[str, Callable[[_Step], _Result]] = {
    MEAN: _Step.mean,
    "median": lambda step: step.sorting(lambda rows, _: median(rows)),
    "trimmed-mean": lambda step: step.sorting(lambda rows, f: trimmed_mean(rows, f=f)),
    "meamed": lambda step: step.sorting(lambda rows, f: mean_around_median(rows, count=rows.n - f)),
    "krum": _Step.krum,
    "multi-krum": _Step.krum,
    "bulyan": _Step.bulyan,
    "mda": _Step.minimum_diameter,
    "geometric-median": _Step.geometric_median,
    CLIPPING: _Step.centered_clipping,
}


def _counted(rows: Rows, places: tf.Tensor | None) -> tf.Tensor:
    """Which workers a result was made of, bool [n]; after mixing, all whose gradients its rows have."""
    places = tf.range(rows.n_present) if places is None else places
    if rows.mixing is None:
        workers = tf.gather(rows.order, places)
    else:
        used = tf.reduce_any(tf.gather(rows.mixing, places) > 0, axis=0)
        workers = tf.boolean_mask(rows.order, used)
    return tf.reduce_any(tf.equal(workers[:, None], tf.range(len(rows.vectors))[None, :]), axis=0)
