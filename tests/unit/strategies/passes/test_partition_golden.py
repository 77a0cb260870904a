"""What the pass `partition` makes of a step that fits on a page, as text; see golden_steps."""

from dataclasses import replace

import pytest

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

from golden_steps import FLOAT, check_text, node, text_of, tiny

from strategies.ir.graph import Shape
from strategies.ir.partitioning.propagate import axes_to_cut, spread, spread_along
from strategies.ir.ranges import Cut
from strategies.passes.partition.partition import Partition
from strategies.topology import Topology

ONE = Topology(replicas_per_task=(1,), batch_size=3)
VECTOR = Shape((3,))


def vector(update="AssignSubVariableOp"):
    """The tiny step with a vector of three for its variable, and a learning rate in the update."""
    step = tiny()
    nodes = [
        replace(n, attrs={**n.attrs, "shape": VECTOR}) if n.name in ("w", "w/initial") else n
        for n in step.graph.nodes
        if n.name != "update"
    ]
    squared = node("squared", "Square", "gradient", T=FLOAT)
    norm = node("norm", "L2Loss", "squared", T=FLOAT)
    scaled = node("scaled", "Mul", "squared", "norm", T=FLOAT)
    nodes += [squared, norm, scaled, node("update", update, "w", "scaled", dtype=FLOAT)]
    region = replace(step.regions[0], nodes=("squared", "norm", "scaled", "update"))
    return replace(
        step,
        graph=step.graph.with_nodes(nodes),
        variables=(replace(step.variables[0], shape=VECTOR),),
        boundaries=(replace(step.boundaries[0], shape=VECTOR),),
        regions=(region,),
    )


def test_golden():
    step = Partition(cuts={"w": Cut(axis=0, sizes=(2, 1))}).apply(vector(), ONE)
    parts = "".join(f"# {v.name} {v.shape.dims} {v.part}\n" for v in step.variables)
    check_text(text_of(step) + parts, "partition-task-0.txt")


def test_an_op_without_a_rule_is_refused_by_name():
    step = vector("ResourceStridedSliceAssign")
    assert axes_to_cut(step, spread_along(step)) == {"w": ()}
    assert "'update' (ResourceStridedSliceAssign)" in spread(step, {"w": 0}).refused["w"]


def test_a_variable_that_feeds_control_flow_stays_whole():
    step = vector()
    step = replace(
        step, graph=step.graph.with_nodes([*step.graph.nodes, node("loop", "Enter", "w", T=FLOAT)])
    )
    assert axes_to_cut(step, spread_along(step)) == {"w": ()}
    assert "feeds node 'loop' (Enter)" in spread(step, {"w": 0}).refused["w"]
