"""Pass `partition`, applied to a step that fits on a page, as text; see golden_steps."""

import pytest

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

from golden_steps import text_of, vector
from golden_texts import check_text
from task_plans import task_plan

from strategies.ir.partitioning.propagate import axes_to_cut, spread, spread_along
from strategies.passes.partition.partition import PartitionVariables
from strategies.plan.schema import Partition, PlanNode
from strategies.topology import Topology

ONE = Topology(replicas_per_task=(1,), batch_size=3)


def test_golden():
    cut = PlanNode(
        variable="w",
        shape=(3,),
        dtype="float",
        bytes=12,
        sparse=False,
        partition=Partition(axis=0, sizes=(2, 1)),
        synchronizer="none",
    )
    step = PartitionVariables(plan=task_plan(cut)).apply(vector(), ONE)
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
