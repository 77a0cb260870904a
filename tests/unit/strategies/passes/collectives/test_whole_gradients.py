"""Gradients of ranges are joined before a sum that all need, and split after it."""

import pytest

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

from strategies.ir.graph import DType, Shape
from strategies.ir.train_graph import Boundary, Contribution
from strategies.passes.collectives.whole_gradients import WholeGradients
from strategies.passes.replicate.rewire import total
from strategies.plan.partitions import OwnedParts
from strategies.plan.sharding import ShardedTensor

DEVICES = {0: "/device:CPU:0"}
PARTS = OwnedParts(
    variable="w",
    tensor=ShardedTensor(dims=(6, 2), axis=0, sizes=(1, 2, 3), owners=(0, 1, 2)),
    ranges=("w/part_0", "w/part_1"),
    range_sizes=(1, 5),
)


def boundary(variable, length):
    return Boundary(
        variable=variable,
        role="gradient",
        rule="mean",
        dtype=DType("float"),
        shape=Shape((length, 2)),
        values=f"{variable}/gradient",
        rank=0,
        contributions=(Contribution(rank=0, values=f"{variable}/sent", indices=None, weight=1.0),),
    )


RANGES = [boundary("w/part_0", 1), boundary("w/part_1", 5)]


def test_ranges_are_one_boundary_of_the_whole():
    other = boundary("b", 4)
    wholes = WholeGradients.of([PARTS], [*RANGES, other], DEVICES)
    whole, unchanged = wholes.boundaries
    assert unchanged is other
    assert (whole.values, whole.shape) == (RANGES[0].values, Shape((6, 2)))
    assert [node.op for node in wholes.nodes] == ["Const", "ConcatV2"]
    (joined,) = whole.contributions
    assert joined.values == wholes.nodes[-1].name


def test_the_sum_of_the_whole_is_split_into_the_ranges():
    wholes = WholeGradients.of([PARTS], RANGES, DEVICES)
    other = total(0, "other_sum")
    nodes, results = wholes.of_ranges({RANGES[0].values: total(0, "sum"), "b/gradient": other}, DEVICES)
    (split,) = (node for node in nodes if node.op == "SplitV")
    assert "sum" in split.inputs
    assert results.pop("b/gradient") == other
    assert [c.values for c in results.values()] == [split.name, f"{split.name}:1"]
    assert list(results) == [b.values for b in RANGES]


def test_a_single_range_stays_as_it_is():
    one = OwnedParts(variable="w", tensor=PARTS.tensor, ranges=("w/part_0",), range_sizes=(6,))
    b = boundary("w/part_0", 6)
    wholes = WholeGradients.of([one], [b], DEVICES)
    assert (wholes.boundaries, wholes.nodes) == ((b,), ())
