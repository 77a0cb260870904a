"""Rules of aggregation: their definitions, and laws that hold whatever workers contribute."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache

import numpy as np
import pytest
from aggregation_reference import Asked, Vector, combined
from hypothesis import given, settings
from hypothesis import strategies as st

from strategies.plan.aggregation import BY_NAME, MIXING, Aggregation

pytestmark = pytest.mark.tensorflow

SHAPES: Mapping[str, tuple[int, int]] = {
    "mean": (5, 0),
    "median": (5, 2),
    "trimmed-mean": (6, 2),
    "meamed": (7, 3),
    "krum": (7, 2),
    "multi-krum": (8, 2),
    "bulyan": (11, 2),
    "mda": (6, 2),
    "geometric-median": (5, 2),
    "centered-clipping": (6, 2),
}
"""Rule → workers, and faulty ones among them."""
DIM = 4
MANY = 16
"""Number of workers from which on operations are on all rows at once."""
Aggregate = Callable[[Vector], Vector]


@cache
def aggregate_of(aggregation: Aggregation, dim: int = DIM, shares: tuple[float, ...] = ()) -> Aggregate:
    """A session's function: [n, dim] → [dim]; a rule with state begins with zeros each time."""
    import tensorflow as tf

    from strategies.numerics.aggregators import aggregate, states

    types = {"double": tf.float64, "int64": tf.int64}
    with tf.Graph().as_default() as graph, as_in_snippets():
        rows = tf.compat.v1.placeholder(tf.float64, [aggregation.n, dim])
        combined = aggregate(
            # As gathered, or as each worker has put its own into a queue.
            [rows] if aggregation.n > MANY else tf.split(rows, aggregation.n),
            [tf.zeros(spec.dims, types[spec.dtype]) for spec in states(aggregation, dim, "double")],
            aggregation=aggregation,
            shares=shares or (1.0,) * aggregation.n,
        )
    session = tf.compat.v1.Session(graph=graph)
    return session.make_callable(combined.vector, [rows])  # type: ignore[no-any-return]


@contextmanager
def as_in_snippets() -> Iterator[None]:
    """Control flow of the first kind, which passes splice in."""
    import tensorflow as tf

    tf.compat.v1.disable_control_flow_v2()
    try:
        yield
    finally:
        tf.compat.v1.enable_control_flow_v2()


def aggregation_of(rule: str, **knobs: object) -> Aggregation:
    """A rule for the workers of the table above."""
    n, f = SHAPES[rule]
    aggregation = Aggregation.of({"rule": rule, "f": f, "pre": "none", **knobs}, n)
    assert aggregation is not None
    return aggregation


def reference(rows: Vector, aggregation: Aggregation) -> Vector:
    """Result by the definition."""
    asked_for = Asked(
        rule=aggregation.rule,
        f=aggregation.f,
        m=aggregation.m,
        variant=aggregation.variant,
        iterations=aggregation.iterations,
        nu=aggregation.nu,
        tau=aggregation.tau,
        mixed=aggregation.pre == MIXING,
    )
    return combined(list(rows), asked_for)


def inputs(n: int, dim: int = DIM) -> Mapping[str, Vector]:
    """Contributions of every kind that a rule may meet; ties among them are exact in float64."""
    rng = np.random.default_rng(n)
    normal = rng.normal(size=(n, dim))
    tied = rng.integers(-1, 2, size=(n, dim)).astype(float)
    outliers = normal.copy()
    outliers[: (n - 1) // 2] *= -1e6
    mixed_scales = normal * (10.0 ** rng.integers(-8, 8, size=(n, 1)))
    same = np.tile(normal[0], (n, 1))
    one_apart = same.copy()
    one_apart[n // 2] = normal[1]
    huge_one = normal.copy()
    huge_one[1] = 1e150
    return {
        "normal": normal,
        "tied": tied,
        "near-equal": 1.0 + 1e-12 * normal,
        "same": same,
        "zeros": np.zeros((n, dim)),
        "one apart": one_apart,
        "two groups": np.where(np.arange(n)[:, None] % 2, normal[0], normal[1]),
        "on a line": np.arange(n)[:, None] * np.ones((1, dim)),
        "outliers": outliers,
        "mixed scales": mixed_scales,
        "huge": normal * 1e120,
        "tiny": normal * 1e-120,
        "one huge": huge_one,
    }


@pytest.mark.parametrize("rule", list(BY_NAME))
def test_a_rule_equals_its_definition(rule: str) -> None:
    aggregation = aggregation_of(rule)
    aggregate = aggregate_of(aggregation)
    for name, rows in inputs(aggregation.n).items():
        assert_equal(aggregate(rows), reference(rows, aggregation), rows, name)


@pytest.mark.parametrize("pre", ["none", MIXING])
@pytest.mark.parametrize("rule", list(BY_NAME))
def test_a_rule_equals_its_definition_for_many_workers(rule: str, pre: str) -> None:
    aggregation = Aggregation.of({"rule": rule, "f": SHAPES[rule][1], "pre": pre}, MANY + 3)
    assert aggregation is not None
    aggregate = aggregate_of(aggregation)
    for name, rows in inputs(aggregation.n).items():
        if pre == "none" or name not in ("tied", "near-equal", "two groups", "on a line"):
            assert_equal(aggregate(rows), reference(rows, aggregation), rows, name)


def test_the_number_of_operations_does_not_grow_with_many_workers() -> None:
    import tensorflow as tf

    from strategies.numerics.aggregators import aggregate, states

    def n_operations(rule: str, n: int) -> int:
        aggregation = Aggregation.of({"rule": rule, "f": min(1, SHAPES[rule][1]), "pre": "none"}, n)
        assert aggregation is not None
        with tf.Graph().as_default() as graph, as_in_snippets():
            aggregate(
                [tf.zeros([n, DIM])],
                [tf.zeros(spec.dims) for spec in states(aggregation, DIM, "float")],
                aggregation=aggregation,
                shares=(1.0 / n,) * n,
            )
            return len(graph.get_operations())

    for rule in BY_NAME:
        assert n_operations(rule, 20) == n_operations(rule, 100)


def assert_equal(got: Vector, expected: Vector, rows: Vector, name: str) -> None:
    largest = np.abs(rows[np.isfinite(rows).all(axis=1)]).max()
    error = np.abs(got / 2 - expected / 2).max()
    assert error <= 1e-10 * largest / 2, (name, got, expected)


def test_the_last_round_of_bulyan_counts_a_neighbour() -> None:
    """The fifth round chooses 20 among -90, 20 and 40, so the median is 2 and not 1."""
    rows = np.array([[-90.0], [0.0], [1.0], [2.0], [3.0], [20.0], [40.0]])
    aggregation = Aggregation.of({"rule": "bulyan", "pre": "none", "f": 1}, 7)
    assert aggregation is not None
    np.testing.assert_allclose(aggregate_of(aggregation, 1)(rows), [np.mean([1.0, 2.0, 3.0])], rtol=1e-12)
    np.testing.assert_allclose(reference(rows, aggregation), [2.0], rtol=1e-12)


def test_bulyan_of_aggregathor_makes_two_rounds_less() -> None:
    aggregation = aggregation_of("bulyan", variant="aggregathor")
    rows = inputs(aggregation.n)["normal"]
    got = aggregate_of(aggregation)(rows)
    assert_equal(got, reference(rows, aggregation), rows, "aggregathor")
    assert np.abs(got - aggregate_of(aggregation_of("bulyan"))(rows)).max() > 1e-3


@pytest.mark.parametrize("rule", ["median", "krum", "trimmed-mean", "mean"])
def test_mixing_gives_a_rule_means_of_neighbours(rule: str) -> None:
    aggregation = aggregation_of(rule, pre=MIXING)
    aggregate = aggregate_of(aggregation)
    for name, rows in inputs(aggregation.n).items():
        # Rounding in the mixed rows, which the reference does not share, would make or break ties of others.
        if name not in ("tied", "near-equal", "two groups", "on a line"):
            assert_equal(aggregate(rows), reference(rows, aggregation), rows, name)


@pytest.mark.parametrize("rule", BY_NAME)
def test_what_is_not_finite_is_left_out_and_counts_as_faulty(rule: str) -> None:
    aggregation = aggregation_of(rule)
    aggregate = aggregate_of(aggregation)
    rows = inputs(aggregation.n)["normal"].copy()
    for n_bad, bad in enumerate((np.nan, np.inf, -np.inf)):
        if aggregation.n - n_bad - 1 < aggregation.least_finite:
            break
        rows[2 * n_bad, n_bad] = bad
        assert_equal(aggregate(rows), reference(rows, aggregation), rows, f"{n_bad + 1} bad")


def test_a_step_without_enough_finite_contributions_fails_in_words() -> None:
    import tensorflow as tf

    rows = np.full((5, DIM), np.nan)
    with pytest.raises(
        tf.errors.InvalidArgumentError,
        match=r"rule=median needs 1\] \[finite contributions\] \[of 5 workers, got\] \[0",
    ):
        aggregate_of(aggregation_of("median"))(rows)


def test_the_mean_weighs_by_examples() -> None:
    shares = (0.1, 0.2, 0.3, 0.2, 0.2)
    rows = inputs(5)["normal"].copy()
    aggregate = aggregate_of(aggregation_of("mean"), shares=shares)
    np.testing.assert_allclose(aggregate(rows), np.array(shares) @ rows, rtol=1e-14)
    rows[2] = np.nan
    left = [0, 1, 3, 4]
    expected = np.array(shares)[left] @ rows[left] / 0.7
    np.testing.assert_allclose(aggregate(rows), expected, rtol=1e-14)


VALUES = st.one_of(
    st.sampled_from([-1.0, 0.0, 0.5, 1.0]),
    st.floats(-10, 10, allow_nan=False, width=32),
    st.sampled_from([1 + 2.0**-52, 1e-12, 1e12]),
)
ROWS = st.lists(st.lists(VALUES, min_size=DIM, max_size=DIM), min_size=12, max_size=12)
PERMUTATION = st.permutations(range(12))


@pytest.mark.parametrize("pre", ["none", MIXING])
@pytest.mark.parametrize("rule", BY_NAME)
@settings(max_examples=25, deadline=None)
@given(values=ROWS, order=PERMUTATION)
def test_the_order_of_workers_does_not_matter_to_a_digit(
    rule: str, pre: str, values: list[list[float]], order: list[int]
) -> None:
    aggregation = aggregation_of(rule, pre=pre)
    aggregate = aggregate_of(aggregation)
    n = aggregation.n
    rows = np.array(values)[:n]
    permuted = rows[[i for i in order if i < n]]
    np.testing.assert_array_equal(aggregate(rows), aggregate(permuted))


@pytest.mark.parametrize("huge", [-1e12, -1e150, 1e150])
@pytest.mark.parametrize("pre", ["none", MIXING, "bucketing"])
@pytest.mark.parametrize("rule", ["median", "krum", "trimmed-mean", "geometric-median", "meamed"])
def test_one_huge_contribution_leaves_the_others_their_digits(rule: str, pre: str, huge: float) -> None:
    """Wherever it stands in the order of rows: sums about it would have lost them."""
    n = 10
    aggregation = Aggregation.of({"rule": rule, "f": 1, "pre": pre}, n)
    assert aggregation is not None
    rows = np.random.default_rng(5).normal(size=(n, DIM))
    rows[3] = huge
    got = aggregate_of(aggregation)(rows)
    honest = np.delete(rows, 3, axis=0)
    assert (got >= honest.min(axis=0) - 1e-3).all()
    assert (got <= honest.max(axis=0) + 1e-3).all()
    assert np.abs(got).max() > 1e-3


@pytest.mark.parametrize("huge", [-1e150, 1e150])
def test_the_largest_contribution_moves_centered_clipping_no_farther_than_its_limit(huge: float) -> None:
    aggregation = aggregation_of("centered-clipping", tau=0.1, iterations=3)
    aggregate = aggregate_of(aggregation)
    rows = np.random.default_rng(5).normal(size=(aggregation.n, DIM))
    rows[3] = huge
    got = aggregate(rows)
    assert np.linalg.norm(got) <= 3 * 0.1
    # In the same direction, also farther than the limit.
    rows[3] = np.sign(huge)
    np.testing.assert_allclose(got, aggregate(rows), atol=5e-3)


@pytest.mark.parametrize("rule", BY_NAME)
def test_the_order_of_workers_does_not_matter_beside_what_is_not_finite(rule: str) -> None:
    aggregation = aggregation_of(rule)
    aggregate = aggregate_of(aggregation)
    rows = inputs(aggregation.n)["tied"].copy() if aggregation.f else inputs(aggregation.n)["normal"].copy()
    rows[1, 2] = np.nan
    first = aggregate(rows)
    rng = np.random.default_rng(1)
    for _ in range(10):
        np.testing.assert_array_equal(aggregate(rows[rng.permutation(aggregation.n)]), first)


@pytest.mark.parametrize("rule", [name for name in BY_NAME if name != "centered-clipping"])
@settings(max_examples=25, deadline=None)
@given(values=ROWS, shift=st.integers(-8, 8), exponent=st.integers(-20, 20))
def test_a_rule_moves_and_grows_with_what_it_combines(
    rule: str, values: list[list[float]], shift: int, exponent: int
) -> None:
    aggregation = aggregation_of(rule)
    # Of whole numbers, whose sums and multiples by powers of two are exact.
    rows = np.round(np.clip(np.array(values)[: aggregation.n], -100, 100) * 4)
    factor = 2.0**exponent
    scaled = aggregation_of(rule, nu=aggregation.nu * factor) if rule == "geometric-median" else aggregation
    moved = aggregate_of(scaled)((rows + shift) * factor)
    expected = (aggregate_of(aggregation)(rows) + shift) * factor
    np.testing.assert_allclose(moved, expected, rtol=0, atol=1e-9 * factor * (np.abs(rows).max() + 8))


@settings(max_examples=25, deadline=None)
@given(values=ROWS, exponent=st.integers(-20, 20))
def test_centered_clipping_grows_with_gradients_and_limit_together(
    values: list[list[float]], exponent: int
) -> None:
    factor = 2.0**exponent
    rows = np.clip(np.array(values)[:6], -100, 100)
    got = aggregate_of(aggregation_of("centered-clipping", tau=factor))(rows * factor)
    expected = aggregate_of(aggregation_of("centered-clipping"))(rows) * factor
    np.testing.assert_allclose(got, expected, rtol=1e-9, atol=1e-12 * factor)


@pytest.mark.parametrize("rule", [name for name in BY_NAME if name != "centered-clipping"])
@settings(max_examples=20, deadline=None)
@given(value=st.lists(st.floats(-1e150, 1e150), min_size=DIM, max_size=DIM))
def test_equal_contributions_come_back_unchanged(rule: str, value: list[float]) -> None:
    aggregation = aggregation_of(rule)
    rows = np.tile(np.array(value), (aggregation.n, 1))
    np.testing.assert_allclose(aggregate_of(aggregation)(rows), rows[0], rtol=1e-10, atol=1e-300)


@pytest.mark.parametrize("rule", BY_NAME)
def test_long_vectors_go_in_chunks(rule: str) -> None:
    """Chunks of the smallest length give the same as the rule in one piece."""
    aggregation = aggregation_of(rule, **({"tau": 1e4} if rule == "centered-clipping" else {}))
    dim = 3 * 2**16 + 5
    rows = np.random.default_rng(3).normal(size=(aggregation.n, dim))
    rows[:2] *= -10
    got = aggregate_of(aggregation, dim)(rows)
    places = np.r_[:4, dim - 3 : dim]
    match rule:
        case "median":
            np.testing.assert_array_equal(got, np.median(rows, axis=0))
        case "trimmed-mean" | "meamed" | "mean":
            assert_equal(got[places], reference(rows[:, places], aggregation), rows, rule)
        case "krum" | "multi-krum" | "mda":
            n_rows = {"krum": 1, "multi-krum": aggregation.m, "mda": aggregation.n - aggregation.f}[rule]
            squares = ((rows[:, None] - rows[None]) ** 2).sum(axis=2)
            scores = np.sort(squares, axis=1)[:, 1 : aggregation.n - aggregation.f - 1].sum(axis=1)
            best = np.argsort(scores)[:n_rows] if rule != "mda" else np.arange(2, aggregation.n)
            assert_equal(got, rows[best].mean(axis=0), rows, rule)
        case "bulyan":
            chosen = rows[bulyan_choice(rows, aggregation.f)]
            centre = np.median(chosen, axis=0)
            closest = np.argsort(np.abs(chosen - centre), axis=0)[: len(chosen) - 2 * aggregation.f]
            assert_equal(got, np.take_along_axis(chosen, closest, axis=0).mean(axis=0), rows, rule)
        case "geometric-median":
            units = (rows - got) / np.linalg.norm(rows - got, axis=1)[:, None]
            assert np.linalg.norm(units.sum(axis=0)) < 0.1
        case _:
            assert_equal(got, rows.mean(axis=0), rows, rule)


def bulyan_choice(rows: Vector, f: int) -> list[int]:
    """Rows of the first phase, by distances in float64."""
    squares = ((rows[:, None] - rows[None]) ** 2).sum(axis=2)
    left, chosen = list(range(len(rows))), []
    while len(chosen) < len(rows) - 2 * f:
        scores = np.sort(squares[np.ix_(left, left)], axis=1)[:, 1 : max(len(left) - f - 1, 2)].sum(axis=1)
        best = np.flatnonzero(scores == scores.min())
        first = min((left[i] for i in best), key=lambda i: tuple(rows[i]))
        chosen.append(first)
        left.remove(first)
    return chosen
