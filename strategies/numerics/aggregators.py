"""Rules that combine workers' gradients, some of them faulty: n vectors [d] → one vector [d].

Distances are summed in float64; ties go to the row that comes first in lexicographic order. `RULES` at the
end maps names to functions; `strategies.plan.aggregation` states the number of workers that each rule needs.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

import tensorflow as tf

from strategies.numerics.compressors import StateSpec
from strategies.numerics.rows import Rows, ascending, finite_vectors, n_rows, padded
from strategies.plan.aggregation import BUCKETING, CLIPPING, MEAN, MIXING, TOO_FEW_FINITE, Aggregation

INFINITE = float("inf")


@dataclass(frozen=True, slots=True, kw_only=True)
class Combined:
    """Result of one aggregation.

    Attributes:
        vector: combined gradient [d].
        chosen: workers whose contributions have a part in the result, bool [n].
        finite: workers whose contributions are finite, bool [n].
        state: state for the next step, in the order of `states`.
    """

    vector: tf.Tensor
    chosen: tf.Tensor
    finite: tf.Tensor
    state: tuple[tf.Tensor, ...]


def states(aggregation: Aggregation, size: int, dtype: str) -> tuple[StateSpec, ...]:
    """List the state that a rule keeps between steps.

    Args:
        size: length of a vector. dtype: `float` or `double`.
    """
    centre = StateSpec(name="centre", dims=(size,), dtype=dtype, common=True)
    turn = StateSpec(name="turn", dims=(), dtype="int64", common=True)
    return (
        *((centre,) if aggregation.rule == CLIPPING else ()),
        *((turn,) if aggregation.pre == BUCKETING else ()),
    )


def aggregate(
    blocks: Sequence[tf.Tensor],
    state: Sequence[tf.Tensor],
    *,
    aggregation: Aggregation,
    shares: Sequence[float],
    seed: int = 0,
) -> Combined:
    """Combine the contributions of n workers; the result does not depend on their order.

    Contributions that are not finite are left out and counted as faulty.

    Args:
        blocks: vectors of all workers, float or double: [k, d] for k workers each.
        state: state after the previous step, initially zeros.
        shares: each worker's share of the examples; only the plain mean weights by it.
    Raises:
        tf.errors.InvalidArgumentError: in a run of the graph with too few finite contributions.
    """
    finite = finite_vectors(blocks)
    n_finite, least = tf.math.count_nonzero(finite, dtype=tf.int32), aggregation.least_finite
    # In pieces, so that a graph's text shows each one whole.
    message = [f"rule={aggregation.rule} needs {least}", TOO_FEW_FINITE, f"of {n_rows(blocks)} workers, got"]
    enough = tf.debugging.Assert(n_finite >= least, [*message, n_finite])
    with tf.control_dependencies([enough]):
        rows = Rows.of(blocks, tf.identity(finite))
    f = tf.maximum(aggregation.f - (aggregation.n - n_finite), 0)
    turn = state[-1] if aggregation.pre == BUCKETING else None
    if aggregation.pre == MIXING:
        rows = nearest_neighbour_mixing(rows, f=f)
    elif turn is not None:
        draw = tf.stack([tf.constant(seed, tf.int64), turn])
        rows = bucketing(rows, size=aggregation.bucket_size, draw=draw)
    contributions = Contributions(rows=rows, f=f, aggregation=aggregation, shares=shares, state=state)
    vector, places = RULES[aggregation.rule](contributions)
    next_state = ((vector,) if aggregation.rule == CLIPPING else ()) + (() if turn is None else (turn + 1,))
    chosen = _workers_of(rows if places is None else rows.chosen(places))
    return Combined(vector=vector, chosen=chosen, finite=finite, state=next_state)


@dataclass(frozen=True, slots=True, kw_only=True)
class Contributions:
    """Input of a rule.

    Attributes:
        f: number of rows that may be faulty, int32; less than requested if some workers were not finite.
        shares: each worker's share of the examples. state: state after the previous step.
    """

    rows: Rows
    f: tf.Tensor
    aggregation: Aggregation
    shares: Sequence[float]
    state: Sequence[tf.Tensor]


Result: TypeAlias = tuple[tf.Tensor, tf.Tensor | None]
"""Combined vector, and positions of the rows that it consists of; None for all rows."""


def mean(rows: Rows) -> tf.Tensor:
    """Mean of all rows: [d]."""
    return rows.map(lambda matrix: tf.reduce_mean(matrix, axis=0))


def weighted_mean(rows: Rows, weights: tf.Tensor) -> tf.Tensor:
    """Weighted mean of all rows: [d].

    Args:
        weights: float64 [n], positive; their sum is arbitrary.
    """
    weights = tf.cast(weights / tf.reduce_sum(weights), rows.dtype)[:, None]
    # Not as a matrix product: GPUs compute these with lower precision.
    return rows.map(lambda matrix: tf.reduce_sum(weights * matrix, axis=0))


def median(rows: Rows) -> tf.Tensor:
    """Median of each coordinate, of an even number the mean of the middle two: [d].

    Source:
        Yin et al. 2018, arXiv:1803.01498, definition 1.
    """
    return rows.map(lambda matrix: _middle(_sorted(matrix, rows), rows.count))


def trimmed_mean(rows: Rows, *, f: tf.Tensor) -> tf.Tensor:
    """Mean per coordinate without the f largest and the f smallest values: [d].

    Args:
        f: number of values dropped at each end; 2f < n.
    Source:
        Yin et al. 2018, arXiv:1803.01498, definition 2, with f/n for its β.
    """
    return rows.map(lambda matrix: tf.reduce_mean(_sorted(matrix, rows)[f : rows.count - f], axis=0))


def mean_around_median(rows: Rows, *, count: tf.Tensor) -> tf.Tensor:
    """Mean per coordinate of the `count` values closest to the coordinate's median: [d].

    Source:
        Xie et al. 2018, arXiv:1802.10116, "mean around median", with n − f for count.
    """

    def of_chunk(matrix: tf.Tensor) -> tf.Tensor:
        middle = _middle(_sorted(matrix, rows), rows.count)
        values = padded(matrix, rows.n_workers, INFINITE)
        closest = ascending(tf.abs(values - middle), carried=values)
        return tf.reduce_mean(closest[:count], axis=0)

    return rows.map(of_chunk)


def krum(rows: Rows, *, f: tf.Tensor, m: int) -> tf.Tensor:
    """Positions of the m rows with the least sums of squared distances to their n − f − 2 nearest others.

    Krum is m = 1, Multi-Krum the mean of these rows. Some packages count n − f − 1 neighbours, or the row
    itself as one of them.

    Args:
        f: number of faulty rows; n ≥ 2f + 3. m: number of rows, at most n − f − 2.
    Returns:
        Row indices, int32 [m], ascending.
    Source:
        Blanchard et al. 2017, Machine learning with adversaries: Byzantine tolerant gradient descent, §4.
    """
    scores = _nearest_sums(rows.squared_distances(), rows.count - f - 2)
    return tf.sort(tf.argsort(scores, stable=True)[:m])


def bulyan(rows: Rows, *, f: tf.Tensor, rounds: tf.Tensor) -> tf.Tensor:
    """Positions of the rows of the first phase: each round removes Krum's best of the remaining rows.

    With p rows left, the nearest p − f − 2 count, at least one. The second phase takes, per coordinate, the
    mean of the rounds − 2f values closest to the median of the chosen rows.

    Args:
        f: number of faulty rows; n ≥ 4f + 3.
        rounds: number of rounds: n − 2f in the paper, n − 2f − 2 in AggregaThor's code.
    Returns:
        Row indices, int32 [rounds], ascending.
    Source:
        El Mhamdi et al. 2018, arXiv:1802.07927, §4; Damaskinos et al. 2019, AggregaThor.
    """
    n, squares = rows.count, rows.squared_distances()
    infinite = tf.constant(float("inf"), tf.float64)

    def one_round(turn: tf.Tensor, left: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        n_others = n - turn - 1
        n_nearest = tf.minimum(tf.maximum(n_others - f - 1, 1), n_others)
        scores = _nearest_sums(tf.where(left[None, :], squares, infinite), n_nearest)
        best = tf.argmin(tf.where(left, scores, infinite), output_type=tf.int32)
        return turn + 1, left & tf.not_equal(tf.range(n), best)

    _, left = tf.while_loop(
        lambda turn, _: turn < rounds,
        one_round,
        [tf.constant(0), tf.ones([n], tf.bool)],
        parallel_iterations=1,
    )
    return tf.boolean_mask(tf.range(n), tf.logical_not(left))


def minimum_diameter(rows: Rows, *, n: int, size: int) -> tf.Tensor:
    """Positions of the subset of rows with the smallest diameter; of equal subsets the first.

    Args:
        n: maximum number of rows. size: size of the subset; all rows are taken if there are fewer.
    Returns:
        Row indices, int32, ascending.
    Source:
        Rousseeuw 1985, Multivariate estimation with high breakdown point; El Mhamdi et al. 2020,
        arXiv:1905.03853, minimum-diameter averaging.
    """
    subsets = tf.constant(list(combinations(range(n), size)), tf.int32)

    def best_subset() -> tf.Tensor:
        missing = n - rows.count
        squares = tf.pad(rows.squared_distances(), [[0, missing], [0, missing]], constant_values=float("inf"))
        within = tf.gather(tf.gather(squares, subsets), subsets, axis=2, batch_dims=1)
        return tf.gather(subsets, tf.argmin(tf.reduce_max(within, axis=[1, 2])))

    return tf.cond(rows.count < size, lambda: tf.range(rows.count), best_subset)


def geometric_median(rows: Rows, first: tf.Tensor, *, iterations: int, nu: float) -> tf.Tensor:
    """Vector with the least sum of distances to all rows, by smoothed Weiszfeld iterations: [d].

    The start should be close to most rows, such as the coordinate-wise median; the paper starts with a mean.

    Args:
        first: start of the iteration, [d].
        nu: smallest distance used in a weight, which limits weights; in units of the gradient.
    Source:
        Pillutla et al. 2022, arXiv:1912.13445, algorithm 2.
    """

    def closer(turn: tf.Tensor, centre: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        return turn + 1, weighted_mean(rows, 1 / tf.maximum(rows.distances_from(centre), nu))

    return _repeated(iterations, closer, first)


def centered_clipping(rows: Rows, centre: tf.Tensor, *, tau: float, iterations: int) -> tf.Tensor:
    """Previous result, moved by the mean of the clipped differences from it: [d].

    Args:
        centre: result of the previous step, [d]; initially zeros.
        tau: norm to which a difference is clipped, in units of the gradient.
    Source:
        Karimireddy et al. 2021, arXiv:2012.10333, algorithm 2.
    """

    def clipped(turn: tf.Tensor, centre: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        distances = tf.maximum(rows.distances_from(centre), tau)
        factors = tf.cast(tau / distances, rows.dtype)[:, None]
        return turn + 1, rows.map(
            lambda matrix, part: part + tf.reduce_mean(factors * (matrix - part), axis=0), centre
        )

    return _repeated(iterations, clipped, centre)


def nearest_neighbour_mixing(rows: Rows, *, f: tf.Tensor) -> Rows:
    """Replace each row by the mean of its n − f nearest rows, including itself.

    Source:
        Allouah et al. 2023, arXiv:2302.01772, algorithm 2.
    """
    size = rows.count - f
    ranks = tf.argsort(tf.argsort(rows.squared_distances(), axis=1, stable=True), axis=1)
    return Rows(
        blocks=rows.blocks,
        order=rows.order,
        mixing=tf.ensure_shape(tf.cast(ranks < size, tf.float64) / tf.cast(size, tf.float64), [None, None]),
    )


def bucketing(rows: Rows, *, size: int, draw: tf.Tensor) -> Rows:
    """Shuffle the rows and replace them by the means of buckets of `size` rows.

    Args:
        size: rows per bucket; the last bucket may have fewer.
        draw: seed of the order, [2], different in each step.
    Source:
        Karimireddy et al. 2022, arXiv:2006.09365, algorithm 1.
    """
    n = rows.count
    places = tf.argsort(tf.argsort(tf.random.stateless_uniform([n], draw, dtype=tf.float64)))
    within = tf.equal(tf.range((n + size - 1) // size)[:, None], (places // size)[None, :])
    counts = tf.math.count_nonzero(within, axis=1, keepdims=True, dtype=tf.float64)
    return Rows(blocks=rows.blocks, order=rows.order, mixing=tf.cast(within, tf.float64) / counts)


def median_of_servers(*values: tf.Tensor, n_lying: int) -> tf.Tensor:
    """Median of each element; for an even number of integers the lower of the middle two.

    Args:
        values: tensors of the servers, of equal shape and type; the faulty servers are the last ones and send
            the negated value.
        n_lying: number of faulty servers.
    """
    n_honest = len(values) - n_lying
    sent = [value if place < n_honest else -value for place, value in enumerate(values)]
    by_value = ascending(tf.stack(sent))
    return _middle(by_value, len(values)) if values[0].dtype.is_floating else by_value[(len(values) - 1) // 2]


def _sorted(matrix: tf.Tensor, rows: Rows) -> tf.Tensor:
    """Values of each coordinate in ascending order, then infinite ones: [number of workers, c]."""
    return ascending(padded(matrix, rows.n_workers, INFINITE))


def _middle(values: tf.Tensor, n: tf.Tensor | int) -> tf.Tensor:
    """Median of the first n of ascending values."""
    return values[(n - 1) // 2] * 0.5 + values[n // 2] * 0.5


def _nearest_sums(squares: tf.Tensor, n_nearest: tf.Tensor) -> tf.Tensor:
    """Sums of each row's distances to its nearest others; its distance to itself, zero, is the first."""
    return tf.reduce_sum(tf.sort(squares, axis=1)[:, 1 : n_nearest + 1], axis=1)


def _repeated(
    iterations: int, fn: Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]], first: tf.Tensor
) -> tf.Tensor:
    _, last = tf.while_loop(
        lambda turn, _: turn < iterations, fn, [tf.constant(0), first], parallel_iterations=1
    )
    return last


def _workers_of(rows: Rows) -> tf.Tensor:
    """Workers that contribute to rows, bool [number of workers]."""
    used = (
        rows.order
        if rows.mixing is None
        else tf.boolean_mask(rows.order, tf.reduce_any(rows.mixing > 0, axis=0))
    )
    return tf.reduce_any(tf.equal(tf.range(rows.n_workers)[:, None], used[None, :]), axis=1)


def _mean(contributions: Contributions) -> Result:
    # Rows that are already means have no share of their own.
    if contributions.rows.mixing is not None or len(set(contributions.shares)) == 1:
        return mean(contributions.rows), None
    return weighted_mean(
        contributions.rows, tf.gather(tf.constant(contributions.shares, tf.float64), contributions.rows.order)
    ), None


def _krum(contributions: Contributions) -> Result:
    places = krum(contributions.rows, f=contributions.f, m=contributions.aggregation.m)
    return mean(contributions.rows.chosen(places)), places


def _bulyan(contributions: Contributions) -> Result:
    rounds = (
        contributions.rows.count
        - 2 * contributions.f
        - (2 if contributions.aggregation.variant == "aggregathor" else 0)
    )
    places = bulyan(contributions.rows, f=contributions.f, rounds=rounds)
    return mean_around_median(contributions.rows.chosen(places), count=rounds - 2 * contributions.f), places


def _minimum_diameter(contributions: Contributions) -> Result:
    n = contributions.aggregation.n_rows(contributions.aggregation.n)
    places = minimum_diameter(contributions.rows, n=n, size=n - contributions.aggregation.f)
    return mean(contributions.rows.chosen(places)), places


def _geometric_median(contributions: Contributions) -> Result:
    aggregation, first = contributions.aggregation, median(contributions.rows)
    return geometric_median(
        contributions.rows, first, iterations=aggregation.iterations, nu=aggregation.nu
    ), None


def _centered_clipping(contributions: Contributions) -> Result:
    aggregation, centre = contributions.aggregation, contributions.state[0]
    return centered_clipping(
        contributions.rows, centre, tau=aggregation.tau, iterations=aggregation.iterations
    ), None


RULES: Mapping[str, Callable[[Contributions], Result]] = {
    MEAN: _mean,
    "median": lambda contributions: (median(contributions.rows), None),
    "trimmed-mean": lambda contributions: (trimmed_mean(contributions.rows, f=contributions.f), None),
    "meamed": lambda contributions: (
        mean_around_median(contributions.rows, count=contributions.rows.count - contributions.f),
        None,
    ),
    "krum": _krum,
    "multi-krum": _krum,
    "bulyan": _bulyan,
    "mda": _minimum_diameter,
    "geometric-median": _geometric_median,
    CLIPPING: _centered_clipping,
}
