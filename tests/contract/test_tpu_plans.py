"""Plans for TPUs where there are none: what TensorFlow's TPU rewrites take is made, checked and imported."""

from dataclasses import replace

import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(600)]
tf = pytest.importorskip("tensorflow")

from harness.worker.verify.in_process import programs_of
from strategies.errors import UnsupportedError
from strategies.passes.pass_order import passes_of
from strategies.passes.run import run_passes
from strategies.planning.plan import topology_of
from strategies.planning.registry import make_plan


def tpu_plan(case, replicas, **params):
    return make_plan(
        "tpu-replicate", params, case.summary, replace(case.topology(replicas), batch_size=8, device="tpu")
    )


@pytest.mark.parametrize("reshard", [False, True])
@pytest.mark.parametrize("replicas", [(4,), (2, 2)])
def test_the_step_becomes_a_replicated_computation_and_no_emulation(cases, replicas, reshard):
    case = cases.of("digits-mlp", "momentum")
    plan = tpu_plan(case, replicas, reshard=reshard)
    for task in range(len(replicas)):
        passes = passes_of(plan, task)
        assert [each.name for each in passes] == ["fuse-updates", "hoist-reads", "tpu-replicate"]
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


def test_one_device_is_refused(cases):
    with pytest.raises(UnsupportedError, match="replicates over TPU devices, got one; raise replicas"):
        tpu_plan(cases.of("digits-mlp", "momentum"), (1,))
