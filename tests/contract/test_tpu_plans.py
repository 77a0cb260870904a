"""Plans for TPUs where there are none: what TensorFlow's TPU rewrites take is made, checked and imported."""

import json
from dataclasses import replace

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(600)]
tf = pytest.importorskip("tensorflow")

from harness.verification.worker.in_process import programs_of
from strategies.errors import StrategyError, UnsupportedError
from strategies.passes.pass_order import passes_of
from strategies.passes.run import run_passes
from strategies.planner import topology_of
from strategies.registry import make_plan
from strategies.user_strategies import read_plan


def tpu_plan(case, replicas, **params):
    return make_plan(
        "tpu-replicate", params, case.summary, replace(case.topology(replicas), batch_size=8, device="tpu")
    )


@pytest.mark.parametrize("replicas", [(4,), (2, 2)])
def test_the_step_becomes_a_replicated_computation_and_no_emulation(cases, replicas):
    case = cases.of("digits-mlp", "momentum")
    plan = tpu_plan(case, replicas)
    for task in range(len(replicas)):
        passes = passes_of(plan, task)
        assert [rewrite.name for rewrite in passes] == ["fuse-updates", "hoist-reads", "tpu-replicate"]
        graph = run_passes(passes, case.step, topology_of(plan), check=True).step
        metadata = [node for node in graph.graph.nodes if node.op == "TPUReplicateMetadata"]
        assert [node.attrs["num_replicas"] for node in metadata] == [4]


def test_its_program_imports_and_names_the_devices_of_tpus(cases):
    case = cases.of("digits-mlp", "momentum")
    for task, program in enumerate(programs_of(case.step, tpu_plan(case, (2, 2)))):
        definition = tf.compat.v1.GraphDef.FromString(program.graph_def)
        with tf.Graph().as_default() as graph:
            tf.import_graph_def(definition, name="")
        operations = graph.get_operations()
        handles = {op.device for op in operations if op.type == "VarHandleOp"}
        assert handles == {f"/job:worker/replica:0/task:{k // 2}/device:TPU:{k % 2}" for k in range(4)}, task
        assert {op.type for op in operations} >= {
            "CrossReplicaSum",
            "TPUReplicatedInput",
            "TPUReplicatedOutput",
        }


def test_parts_of_variables_are_nothing_that_a_plan_for_tpus_decides(cases):
    case = cases.of("digits-mlp", "momentum")
    with pytest.raises(
        UnsupportedError, match="TensorFlow's own rewrites of loops decide that; leave reshard out"
    ):
        tpu_plan(case, (4,), reshard=True)
    edited = tpu_plan(case, (4,)).model_dump(mode="json")
    edited["nodes"][0]["in_parts"] = True
    plan = read_plan(json.dumps(edited), name="edited", where="edited.json")
    with pytest.raises(StrategyError, match="in_parts is for emulated cores; TensorFlow's own rewrites"):
        plan.plan(case.summary, replace(case.topology((4,)), batch_size=8, device="tpu"))


def test_what_tpus_multiply_in_is_nothing_to_ask_of_others(cases):
    case = cases.of("digits-mlp", "momentum")
    assert tpu_plan(case, (4,), matmul="bfloat16").strategy_params["matmul"] == "bfloat16"
    with pytest.raises(
        UnsupportedError, match="matmul=bfloat16 is for TPU devices, got device cpu; leave it out"
    ):
        case.plan("tpu-replicate", (4,), matmul="bfloat16")


def test_one_device_is_refused(cases):
    with pytest.raises(UnsupportedError, match="replicates over TPU devices, got one; raise replicas"):
        tpu_plan(cases.of("digits-mlp", "momentum"), (1,))
