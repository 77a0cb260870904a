"""Plans for GPUs, run where there are none: TensorFlow puts what names a GPU on the CPU of the same task."""

import itertools
from dataclasses import replace

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(600)]
tf = pytest.importorskip("tensorflow")

from harness.worker.in_process import programs_of  # noqa: E402
from strategies.errors import StrategyError  # noqa: E402
from strategies.ir.traversal import ancestors  # noqa: E402
from strategies.passes.of_plan import passes_of  # noqa: E402
from strategies.passes.pipeline import run_passes  # noqa: E402
from strategies.planning import topology_of  # noqa: E402
from strategies.registry import make_plan  # noqa: E402

COLLECTIVE = "CollectiveReduceV2"


def gpu_plan(case, strategy, replicas, **params):
    return make_plan(strategy, params, case.summary, replace(case.topology(replicas), device="gpu"))


@pytest.mark.parametrize(
    ("strategy", "params"),
    [("all-reduce", {"chunk_size": 1}), ("ps", {}), ("sharded-update", {"min_bytes": 1})],
)
def test_a_plan_for_gpus_computes_what_one_device_computes(cases, strategy, params):
    case = cases.of("digits-mlp", "momentum")
    plan = gpu_plan(case, strategy, (1, 1), **params)
    programs = programs_of(case.step, plan)
    assert case.run(plan, programs).equivalent
    for task, program in enumerate(programs):
        graph = tf.compat.v1.GraphDef.FromString(program.graph_def)
        own = f"/job:worker/replica:0/task:{task}/device:"
        of_replica = {n.device for n in graph.node if n.op in ("MatMul", COLLECTIVE)}
        assert of_replica == {f"{own}GPU:0"}
        others = {n.device.rpartition("/device:")[2] for n in graph.node} - {"GPU:0"}
        assert others <= {"CPU:0", ""}


def test_sums_by_nccl_begin_in_the_same_order_on_every_replica(cases):
    case = cases.of("digits-mlp", "momentum")
    plan = gpu_plan(case, "all-reduce", (2, 1), chunk_size=1)
    assert {node.transport for node in plan.nodes} == {"nccl", None}
    order = {}
    for task in range(2):
        graph = run_passes(passes_of(plan, task), case.step, topology_of(plan)).step.graph
        for replica in topology_of(plan).local_replicas(task):
            sums = [n for n in graph.nodes if n.op == COLLECTIVE and n.device == replica.device]
            assert {n.attrs["communication_hint"] for n in sums} == {b"nccl"}
            before = {n.name: ancestors(graph, [n.name]) for n in sums}
            sums.sort(key=lambda n: sum(other.name in before[n.name] for other in sums))
            assert all(a.name in before[b.name] for a, b in itertools.pairwise(sums))
            order[replica.rank] = [n.name.replace(f"replica_{replica.rank}/", "") for n in sums]
    assert len(order[0]) > 2
    assert order[0] == order[1] == order[2]


def test_pieces_of_a_large_sum_wait_for_each_other():
    from strategies.numerics.collectives import bucket_all_reduce

    found = {}
    for hint in ("nccl", "ring"):
        with tf.Graph().as_default() as graph:
            bucket_all_reduce(tf.zeros([8]), shapes=((8,),), group=(2, 1), keys=(1, 2, 3), hint=hint)
        sums = [op for op in graph.get_operations() if op.type == COLLECTIVE]
        found[hint] = [[other.name for other in sums if other in waited_for(each)] for each in sums]
    assert found["ring"] == [[], [], []]
    assert found["nccl"] == [[], ["CollectiveReduceV2"], ["CollectiveReduceV2", "CollectiveReduceV2_1"]]


def waited_for(op):
    """Operations that run before one."""
    found, new = set(), {op}
    while new:
        new = {i for each in new for i in (*(t.op for t in each.inputs), *each.control_inputs)} - found
        found |= new
    return found


def test_owners_sums_are_not_for_nccl(cases):
    case = cases.of("digits-mlp", "momentum")
    plan = gpu_plan(case, "sharded-update", (1, 1))
    assert "nccl" not in {node.transport for node in plan.nodes}
    with pytest.raises(StrategyError, match="transport=nccl takes sums that all replicas begin in one order"):
        gpu_plan(case, "sharded-update", (1, 1), transport="nccl")
