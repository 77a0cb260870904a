"""What the pass `partition` makes of a step that fits on a page, as text; see golden_steps."""

from dataclasses import replace

import pytest

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

from golden_steps import check_text, text_of, tiny

from strategies.ir.graph import Shape
from strategies.ir.partitioning.propagate import axes_to_cut, spread, spread_along
from strategies.ir.ranges import Cut
from strategies.ir.text.parser import from_text
from strategies.passes.partition.partition import PartitionVariables
from strategies.topology import Topology

ONE = Topology(replicas_per_task=(1,), batch_size=3)
VECTOR = Shape((3,))


NODES = """
w = VarHandleOp() {{container='', dtype=float, shape=<3>, shared_name='w'}}
w/initial = Placeholder() {{dtype=float, shape=<3>}}
w/load = AssignVariableOp(w, w/initial) {{dtype=float}}
w/read = ReadVariableOp(w) {{dtype=float}}
x = Placeholder() {{dtype=float, shape=<?>}}
first = ReadVariableOp(w) {{dtype=float}}
second = ReadVariableOp(w) {{dtype=float}}
loss = Loss(x, first, second)
backward = Gradient(x)
gradient = Identity(backward) {{T=float}}
squared = Square(gradient) {{T=float}}
norm = L2Loss(squared) {{T=float}}
scaled = Mul(squared, norm) {{T=float}}
update = {update}(w, scaled) {{dtype=float}}
"""


def vector(update="AssignSubVariableOp", more=""):
    """The tiny step with a vector of three for its variable, and a learning rate in the update."""
    step = tiny()
    return replace(
        step,
        graph=from_text(NODES.format(update=update) + more),
        variables=(replace(step.variables[0], shape=VECTOR),),
        boundaries=(replace(step.boundaries[0], shape=VECTOR),),
        regions=(replace(step.regions[0], nodes=("squared", "norm", "scaled", "update")),),
    )


def test_golden():
    step = PartitionVariables(cuts={"w": Cut(axis=0, sizes=(2, 1))}).apply(vector(), ONE)
    parts = "".join(f"# {v.name} {v.shape.dims} {v.part}\n" for v in step.variables)
    check_text(text_of(step) + parts, "partition-task-0.txt")


def test_an_op_without_a_rule_is_refused_by_name():
    step = vector("ResourceStridedSliceAssign")
    assert axes_to_cut(step, spread_along(step)) == {"w": ()}
    assert "'update' (ResourceStridedSliceAssign)" in spread(step, {"w": 0}).refused["w"]


def test_a_variable_that_feeds_control_flow_stays_whole():
    step = vector(more="loop = Enter(w) {T=float}")
    assert axes_to_cut(step, spread_along(step)) == {"w": ()}
    assert "feeds node 'loop' (Enter)" in spread(step, {"w": 0}).refused["w"]
