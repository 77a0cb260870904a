import numpy as np
import pytest

from harness.worker.verify.rounding import PLAIN, VARIATIONS, RoundedSums, Rounding
from strategies.ir.boundary import Boundary
from strategies.ir.graph import DType, Shape
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
    made = gradients()
    expected = sum(w * g.astype(np.float64) for w, g in zip(WEIGHTS, made, strict=True))
    values, ids = RoundedSums(rounding).of_boundary(boundary(), [(g, None) for g in made], SHARDS)
    assert ids is None
    assert values.dtype == np.float32
    np.testing.assert_allclose(values, expected, rtol=8 * np.finfo(np.float32).eps, atol=1e-7)
    np.testing.assert_array_equal(RoundedSums(rounding).of_all(made, SHARDS, "mean"), values)


def test_variations_round_differently() -> None:
    made = [np.full(1000, 1 / 3) * (1 + np.arange(1000)) for _ in SHARDS]
    sums = {r.name: RoundedSums(r).of_all(made, SHARDS, "mean") for r in (PLAIN, *VARIATIONS)}
    for name in (BACKWARDS.name, PAIRWISE.name, JITTERED.name):
        assert (sums[name] != sums[PLAIN.name]).any()


def test_what_replicas_add_up_is_not_weighed() -> None:
    counts = [(np.array([1, 2, 3]), None), (np.array([10, 20, 30]), None), (np.array([100, 200, 300]), None)]
    values, _ = RoundedSums(JITTERED).of_boundary(boundary("sum"), counts, SHARDS)
    np.testing.assert_array_equal(values, [111, 222, 333])


def test_the_first_replica_speaks_for_all_in_any_order() -> None:
    made = [(g, None) for g in gradients()]
    assert RoundedSums(BACKWARDS).of_boundary(boundary("first-replica"), made, SHARDS) is made[0]


def test_rows_are_laid_one_after_the_other_with_their_ids() -> None:
    rows = [(np.full((1, 2), k, np.float32), np.array([k])) for k in range(3)]
    values, ids = RoundedSums(BACKWARDS).of_boundary(boundary(sparse=True), rows, SHARDS)
    assert ids is not None
    np.testing.assert_array_equal(ids, [2, 1, 0])
    np.testing.assert_allclose(values[:, 0], [2 * 2 / 8, 3 / 8, 0], rtol=1e-6)
