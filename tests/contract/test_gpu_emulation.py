"""Cores emulated by parts of one GPU: the computation, its resharding and its collectives run there."""

import pytest

pytestmark = [pytest.mark.gpu, pytest.mark.tensorflow]
pytest.importorskip("tensorflow")

from dataclasses import replace

import tensorflow as tf
from cases import Case

from harness.verification.reference import Outcome
from harness.verification.worker.in_process import in_own_group, programs_of
from harness.worker.session.session import WorkerSession
from harness.worker.variable_parts import values_of
from strategies.registry import make_plan

PART_MIB = 2048
STEPS_PER_LOOP = 2


def server_on_parts(n_parts: int) -> tf.distribute.Server:
    """A server whose GPU is as many devices as there are replicas."""
    config = tf.compat.v1.ConfigProto(device_count={"CPU": 1})
    part = config.gpu_options.experimental.virtual_devices.add()
    part.memory_limit_mb.extend([PART_MIB] * n_parts)
    config.experimental.collective_group_leader = "/job:worker/replica:0/task:0"
    cluster = tf.train.ClusterSpec({"worker": ["127.0.0.1:0"]})
    return tf.distribute.Server(cluster, job_name="worker", task_index=0, config=config)


def evenly(case: Case) -> Case:
    """A case of which each replica gets as many examples."""
    batches = [[part[:4] for part in batch] for batch in case.batches]
    return replace(case, batches=batches, _references={}, _verdicts={})


def devices_of_a_step(session: WorkerSession, case: Case) -> set[str]:
    """Devices on which operations ran; TensorFlow puts on the host what a device cannot run."""
    with session.traced() as tracer:
        tracer.begin()
        session.steps(case.batches[:1])
        return {dev_stat.device for run in tracer.seen for dev_stat in run.step_stats.dev_stats}


@pytest.fixture(scope="module")
def server():
    # TensorFlow lays out the devices of a process once.
    return server_on_parts(4)


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("reshard", [False, True])
@pytest.mark.parametrize("n_replicas", [2, 4])
def test_it_computes_what_one_device_computes(cases, server, n_replicas, reshard, optimizer):
    case = evenly(cases.of("digits-mlp", optimizer))
    topology = replace(case.topology((n_replicas,)), device="gpu")
    params = {"reshard": reshard, "steps_per_loop": STEPS_PER_LOOP}
    plan = make_plan("tpu-replicate", params, case.summary, topology)
    (program,) = in_own_group(programs_of(case.step, plan))
    session = WorkerSession(program, server.target, case.initial)
    session.load()
    session.setup()
    weights = [loss.weight for loss in program.step.losses]
    losses = []
    n_steps = len(case.batches)
    for first in range(0, n_steps, STEPS_PER_LOOP):
        steps = session.steps(case.batches[first : first + STEPS_PER_LOOP])
        losses += [float(loss_row @ weights) for loss_row in steps]
    n_runs = -(-n_steps // STEPS_PER_LOOP)
    values = values_of([session.read()])
    counted = session.resharding()
    devices = devices_of_a_step(session, case)
    session.close()
    for replica in topology.replicas():
        assert any(replica.device in device for device in devices), devices
    assert case.reference((n_replicas,)).judge(Outcome(values=values, losses=losses)).equivalent
    if reshard:
        assert [(counts.n_loops, counts.reshards, counts.shards, counts.unshards) for counts in counted] == [
            (n_runs, n_steps, n_runs, n_runs)
        ] * n_replicas
        assert all(n_replicas * counts.kept_bytes <= 1.2 * counts.whole_bytes for counts in counted)
