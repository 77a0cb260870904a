import numpy as np
import pytest

from harness.verification.worker.rounding import PLAIN, VARIATIONS, RoundedReads, RoundedSums, Rounding
from strategies.ir.graph import DType, Shape
from strategies.ir.train_graph import Boundary
from strategies.topology import Topology

SHARDS = Topology(replicas_per_task=(2, 1), batch_size=8).shards()  # of 3, 3 and 2 examples
WEIGHTS = [3 / 8, 3 / 8, 2 / 8]
BACKWARDS, PAIRWISE, JITTERED = VARIATIONS


def boundary(rule: str = "mean", *, sparse: bool = False) -> Boundary:
    return Boundary(
        variable="v",
        role="gradient",
        rule=rule,
        dtype=DType("float"),
        shape=Shape((3,)),
        values="values",
        indices="indices" if sparse else None,
        index_dtype=DType("int64") if sparse else None,
    )


def gradients(dtype: type = np.float32) -> list[np.ndarray]:
    random = np.random.default_rng(0)
    return [random.normal(size=(3,)).astype(dtype) for _ in SHARDS]


@pytest.mark.parametrize("rounding", [PLAIN, *VARIATIONS], ids=lambda r: r.name)
def test_every_rounding_is_the_mean_by_examples_but_for_rounding(rounding: Rounding) -> None:
    grads = gradients()
    expected = sum(w * g.astype(np.float64) for w, g in zip(WEIGHTS, grads, strict=True))
    values, ids = RoundedSums(rounding).of_boundary(boundary(), [(g, None) for g in grads], SHARDS)
    assert ids is None
    assert values.dtype == np.float32
    np.testing.assert_allclose(values, expected, rtol=8 * np.finfo(np.float32).eps, atol=1e-7)
    np.testing.assert_array_equal(RoundedSums(rounding).of_all(grads, SHARDS, "mean"), values)


def test_variations_round_differently() -> None:
    results = [np.full(1000, 1 / 3) * (1 + np.arange(1000)) for _ in SHARDS]
    sums = {r.name: RoundedSums(r).of_all(results, SHARDS, "mean") for r in (PLAIN, *VARIATIONS)}
    for name in (BACKWARDS.name, PAIRWISE.name, JITTERED.name):
        assert (sums[name] != sums[PLAIN.name]).any()


def test_what_replicas_add_up_is_not_weighed() -> None:
    counts = [(np.array([1, 2, 3]), None), (np.array([10, 20, 30]), None), (np.array([100, 200, 300]), None)]
    values, _ = RoundedSums(JITTERED).of_boundary(boundary("sum"), counts, SHARDS)
    np.testing.assert_array_equal(values, [111, 222, 333])


def test_the_first_replica_speaks_for_all_in_any_order() -> None:
    results = [(g, None) for g in gradients()]
    assert RoundedSums(BACKWARDS).of_boundary(boundary("first-replica"), results, SHARDS) is results[0]


def test_rows_are_laid_one_after_the_other_with_their_ids() -> None:
    rows = [(np.full((1, 2), k, np.float32), np.array([k])) for k in range(3)]
    values, ids = RoundedSums(BACKWARDS).of_boundary(boundary(sparse=True), rows, SHARDS)
    assert ids is not None
    np.testing.assert_array_equal(ids, [2, 1, 0])
    np.testing.assert_allclose(values[:, 0], [2 * 2 / 8, 3 / 8, 0], rtol=1e-6)


@pytest.mark.parametrize("eps", [2.0**-52, 2.0**-23, 2.0**-7])
def test_examples_are_off_by_rounding_but_for_those_that_are_exact(eps: float) -> None:
    random = np.random.default_rng(0)
    exact = np.array([0.0, 1.0, -1.0, 3.0, 2.5, -0.25, 127 / 256, 1e6, np.inf, -np.inf])
    rough = random.normal(size=100) * np.pi
    for rounding in VARIATIONS:
        reads = RoundedReads(rounding, eps)
        read = reads.of_examples(np.concatenate([exact, rough]))
        np.testing.assert_array_equal(read[: len(exact)], exact)
        moved = np.abs(read[len(exact) :] - rough)
        assert (moved > 0).mean() > 0.3
        assert (moved <= 2 * eps * np.abs(rough)).all()
        labels = random.integers(0, 9, 50).astype(np.float32)
        np.testing.assert_array_equal(reads.of_examples(labels), labels)
        # Trainables are all read so.
        assert (reads.of(labels.astype(np.float64) + 1) != labels + 1).any()
    plain = RoundedReads(PLAIN, eps)
    np.testing.assert_array_equal(plain.of_examples(rough), rough)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_contributions_keep_both_parts(dtype: type) -> None:
    astypes = [(g + 1j * g[::-1]).astype(dtype) for g in gradients(np.float64)]
    expected = sum(w * g.astype(np.complex128) for w, g in zip(WEIGHTS, astypes, strict=True))
    for rounding in (PLAIN, *VARIATIONS):
        total = RoundedSums(rounding).of_all(astypes, SHARDS, "mean")
        assert total.dtype == dtype
        np.testing.assert_allclose(total, expected, rtol=1e-6, atol=1e-6)


def test_threads_draw_apart_and_the_same_each_time() -> None:
    values = [np.ones(1000, np.float32)] * 8
    first, again = (RoundedReads(JITTERED, 2.0**-23).of_each(values) for _ in range(2))
    np.testing.assert_array_equal(first, again)
    assert len({value.tobytes() for value in first}) == len(values)
    sums = RoundedSums(JITTERED)
    result = [np.full(1000, 1 / 3)] * len(SHARDS)
    drawn = {
        rounding.of_all(result, SHARDS, "mean").tobytes() for rounding in (*sums.apart(4), *sums.apart(4))
    }
    assert len(drawn) == 8
