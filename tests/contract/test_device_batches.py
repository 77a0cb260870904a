"""Batches on the devices of replicas: the same steps as on what is fed, and nothing but a number is fed.

TensorFlow puts what names a GPU on the CPU of the same task where there is none.
"""

from contextlib import nullcontext
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(600)]
tf = pytest.importorskip("tensorflow")

from harness.errors import CaseError
from harness.verification.worker import in_process
from harness.verification.worker.in_process import InProcessCluster, programs_of
from harness.worker.jobs import profile_step, training
from harness.worker.jobs.batches import stage_batches
from harness.worker.jobs.gpus import require_devices
from harness.worker.process.job import JobState
from harness.worker.session import device_batches, tensorflow_settings
from harness.worker.session.capture_store import InitialValues, load_step, save
from harness.worker.session.device_batches import (
    MAX_SHARE,
    NUMBER,
    StagedPart,
    on_gpus,
    placement,
    read_staged,
    too_large,
)
from harness.worker.session.session import WorkerSession
from harness.worker.session.tensorflow_settings import OWN_DEVICES
from strategies.baselines.replicated_step import DistributedStep
from strategies.ir.graph import DType, Shape
from strategies.ir.train_graph import BatchInput
from strategies.plan.faults import fault_of
from strategies.registry import make_plan
from strategies.tf_bridge.float64 import step_in_float64
from strategies.topology import Topology, task_device

N_EXAMPLES = 6
SOFT = tf.compat.v1.ConfigProto(allow_soft_placement=True)
FLIPPED = fault_of({"worker": 1, "kind": "label-flip", "classes": 10}, seed=0)


def gpu_of(program):
    return f"{task_device(program.task)}/device:GPU:0"


def gpu_programs(case, strategy, replicas, params, faults=()):
    topology = replace(case.topology(replicas), device="gpu")
    plan = make_plan(strategy, params, case.summary, topology)
    return programs_of(case.step, plan.model_copy(update={"faults": faults}))


def own_parts(case, program):
    return [[part[program.start : program.stop] for part in batch] for batch in case.batches]


def trained(case, programs, feeds_of):
    """Losses of workers' steps, and what all copies of all variables hold afterwards."""
    with InProcessCluster(programs, case.initial) as cluster:
        feeds = {session.program.task: feeds_of(session) for session in cluster.sessions}
        losses = [
            cluster.each(lambda session, k=k: session.step(feeds[session.program.task][k]))
            for k in range(len(case.batches))
        ]
        staged = [session.staged for session in cluster.sessions]
        return losses, cluster.read(), feeds, staged


class OnDevices(WorkerSession):
    """A session that reads staged batches from its devices."""

    def __init__(self, program, *args, **kwargs):
        super().__init__(program, *args, staged_on=gpu_of(program), **kwargs)


@pytest.mark.parametrize(
    ("model", "strategy", "replicas", "params", "faults", "n_parts"),
    [
        ("digits-mlp+momentum", "single", (1,), {}, (), [2]),
        ("digits-mlp+momentum", "ps", (2, 1), {}, (), [4, 2]),
        ("digits-mlp+momentum", "all-reduce", (1, 1), {"transport": "tcp"}, (), [2, 2]),
        ("digits-mlp+adam", "ps", (1, 1), {}, (), [2, 2]),
        ("digits-mlp+adam", "sharded-update", (1, 1), {"min_bytes": 1}, (), [2, 2]),
        ("digits-mlp+momentum", "all-reduce", (1, 1), {"accumulate": 2}, (), [4, 4]),
        # The host flips labels, which it takes of the whole batch.
        ("digits-mlp+momentum", "ps", (1, 2), {}, (FLIPPED,), [2, 3]),
        # The server on the host takes ids too.
        ("word-lm+adam", "ps", (2,), {}, (), [6]),
    ],
)
def test_steps_are_those_on_fed_batches(
    cases, monkeypatch, model, strategy, replicas, params, faults, n_parts
):
    case = cases.model(model).with_examples(N_EXAMPLES)
    programs = gpu_programs(case, strategy, replicas, params, faults)
    losses, values, _, nothing = trained(case, programs, lambda s: own_parts(case, s.program))
    monkeypatch.setattr(in_process, "WorkerSession", OnDevices)
    staged_losses, staged_values, feeds, staged = trained(
        case, programs, lambda s: s.stage(own_parts(case, s.program))
    )
    assert set(nothing) == {()}
    assert [len(parts) for parts in staged] == n_parts
    assert {part.nbytes for of_worker in feeds.values() for feed in of_worker for part in feed} == {4}
    np.testing.assert_equal(staged_losses, losses)
    np.testing.assert_equal(staged_values, values)


def test_a_traced_step_and_held_bytes_are_of_staged_batches_too(cases):
    case = cases.model("digits-mlp+momentum").with_examples(N_EXAMPLES)
    (program,) = gpu_programs(case, "single", (1,), {})
    held_bytes = []
    for staged_on in (None, gpu_of(program)):
        session = WorkerSession(program, OWN_DEVICES, case.initial, staged_on=staged_on)
        session.load()
        feeds = session.stage(own_parts(case, program))
        before = session.step(feeds[0])
        trace = profile_step.trace(session, [feeds[0], feeds[0]])
        assert any("MatMul" in event.op for event in trace.events)
        assert session.step(feeds[0]) < before
        held_bytes.append(session.held_bytes())
        session.close()
    assert held_bytes[0] == held_bytes[1]


def in_float64(captured, folder):
    """Store a capture as its step in float64 and return its folder."""
    initial = InitialValues(captured, float64=True)
    save(folder, step_in_float64(load_step(captured)), {name: initial.stored(name) for name in initial.names})
    return str(folder)


@pytest.mark.parametrize("n_more_bytes", [0, 1])
def test_the_jobs_of_a_worker_lay_batches_on_its_gpus(cases, tmp_path, monkeypatch, n_more_bytes):
    """Unless they take more than a share of what its session has there."""
    case = cases.model("digits-mlp+momentum").with_examples(N_EXAMPLES)
    plan = make_plan("single", {}, case.summary, replace(case.topology((1,)), device="gpu"))
    for number, part in enumerate(zip(*case.batches, strict=True)):
        np.save(tmp_path / f"{number}.{part[0].dtype.name}.npy", np.stack(part))
    n_bytes = sum(file.stat().st_size for file in tmp_path.glob("*.npy")) - n_more_bytes
    monkeypatch.setattr(device_batches, "gpu_memory_bytes", lambda _: {"GPU-0": int(n_bytes / MAX_SHARE)})
    monkeypatch.setattr(tensorflow_settings, "listed_devices", lambda *_: ["/device:GPU:0"])
    state = JobState()
    folder = in_float64(cases.folder / "digits-mlp+momentum", tmp_path / "capture")
    opened = training.open_program(state, folder, plan, 0, batches=str(tmp_path))
    training.load(state)
    stage_batches(state, str(tmp_path), opened.start, opened.stop)
    steps = training.run_steps(state, 2, 0).times
    feeds = state.get(training.Training).feeds
    fed_bytes = {sum(part.nbytes for part in feed) for feed in feeds}
    if n_more_bytes:
        assert opened.input_placement == "host"
        assert "they stay on the host" in opened.notes[0]
        assert min(fed_bytes) > 4
    else:
        # Labels are integers of 32 bits.
        assert (opened.input_placement, opened.notes) == ("mixed", ())
        assert fed_bytes == {4}
    assert np.isfinite(steps.losses).all()


def test_a_session_that_has_not_made_a_device_of_its_gpu_is_refused(cases):
    plan = make_plan(
        "single",
        {},
        cases.model("digits-mlp+momentum").summary,
        Topology(replicas_per_task=(1,), batch_size=6, device="gpu"),
    )
    folder = str(cases.folder / "digits-mlp+momentum")
    with pytest.raises(CaseError, match="worker 0: TensorFlow made devices of 0 of 1 GPUs"):
        training.open_program(JobState(), folder, plan, 0)


@pytest.mark.parametrize(
    ("name", "is_own"),
    [
        ("/device:GPU:0", True),
        ("/job:localhost/replica:0/task:0/device:GPU:0", True),
        ("/job:worker/replica:0/task:1/device:GPU:0", True),
        ("/job:worker/replica:0/task:0/device:GPU:0", False),
        ("/job:worker/replica:0/task:1/device:CPU:0", False),
    ],
)
def test_gpus_of_other_workers_are_not_counted(name, is_own):
    with nullcontext() if is_own else pytest.raises(CaseError, match="of 0 of 1 GPUs"):
        require_devices(1, [name], 1)


def test_what_no_gpu_takes_is_fed(cases):
    case = cases.model("digits-mlp+momentum").with_examples(N_EXAMPLES)
    (program,) = gpu_programs(case, "tpu-replicate", (2,), {"steps_per_loop": 2})
    session = WorkerSession(program, OWN_DEVICES, case.initial, staged_on=gpu_of(program))
    batches = own_parts(case, program)
    assert session.staged == ()
    assert session.stage(batches) == batches
    session.close()


PIXELS = StagedPart(
    source="pixels",
    device="/job:worker/replica:0/task:1/device:GPU:1",
    dtype=tf.float32,
    value="",
    load="",
    tensor="",
)
IDS, TEXT = (replace(PIXELS, source=str(dtype), dtype=dtype) for dtype in (tf.int32, tf.string))
ON_HOST = replace(PIXELS, device="/job:worker/replica:0/task:1/device:CPU:0")
TWO_GPUS = ["/job:localhost/replica:0/task:0/device:CPU:0", *(f"/device:GPU:{k}" for k in range(2))]


@pytest.mark.parametrize(
    ("parts", "devices", "expected"),
    [
        ([PIXELS], TWO_GPUS, "device"),
        ([PIXELS], TWO_GPUS[:2], "host"),
        ([PIXELS, IDS], TWO_GPUS, "mixed"),
        ([PIXELS, ON_HOST], TWO_GPUS, "mixed"),
        ([IDS, TEXT], TWO_GPUS, "host"),
        ([], TWO_GPUS, "host"),
    ],
)
def test_a_record_says_what_lies_on_gpus(parts, devices, expected):
    assert placement(on_gpus(parts, devices)) == expected


def test_batches_too_large_for_a_gpu_stay_on_the_host(tmp_path, monkeypatch):
    (tmp_path / "0.float32.npy").write_bytes(bytes(2_000_000))
    (tmp_path / "1.int32.npy").write_bytes(bytes(2_000_000))
    assert too_large(tmp_path, 1.0) is None  # of a GPU that is not known
    # Each GPU of a worker has its part of them.
    memory = {"GPU-0": 80_000_000, "GPU-1": 12_000_000}
    monkeypatch.setattr(device_batches, "gpu_memory_bytes", lambda _: memory)
    assert too_large(tmp_path, 0.75) is None
    assert too_large(tmp_path, 1.0).startswith(
        "staged batches take 0.002 GB, more than 12% of the 0.012 GB of a GPU: they stay on the host"
    )


def test_nothing_waits_for_what_is_not_fed():
    with tf.Graph().as_default() as graph, tf.device("/device:GPU:0"):
        pixels = tf.compat.v1.placeholder(tf.float32, [None, 2], "pixels")
        with tf.control_dependencies([pixels]):
            tf.add(pixels, 1.0, name="sum")
    graph_def = graph.as_graph_def()
    fed = BatchInput(path="0", node="pixels", dtype=DType("float32"), shape=Shape((-1, 2)))
    (part,) = read_staged(graph_def, [fed], "")
    with tf.compat.v1.Session(graph=tf.Graph(), config=SOFT) as session, session.graph.as_default():
        tf.graph_util.import_graph_def(graph_def, name="")
        rows = np.arange(12, dtype=np.float32).reshape(3, 2, 2)
        session.run(part.load, {f"{part.value}:0": rows})
        process = session.run("sum:0", {f"{NUMBER}:0": [2]})
    np.testing.assert_array_equal(process, rows[2] + 1)
    assert session.graph.get_tensor_by_name(f"{part.tensor}:0").shape.as_list() == [None, 2]


@pytest.mark.parametrize(
    ("device", "on_host", "scopes"),
    [("cpu", False, []), ("gpu", False, ["/GPU:0"]), ("gpu", True, ["/CPU:0"])],
)
def test_rivals_lay_batches_on_their_gpus_too(monkeypatch, device, on_host, scopes):
    replicas = Topology(replicas_per_task=(1,), batch_size=2, device=device).replicas()
    spec = (tf.TensorSpec((3,), tf.float32),)
    one = tf.distribute.OneDeviceStrategy("/cpu:0")
    step = DistributedStep(None, None, one, spec, replicas, 2, on_host=on_host)
    with monkeypatch.context() as patch:
        seen = Mock(wraps=tf.device)
        patch.setattr(tf, "device", seen)
        (rows,) = step.placed([np.ones((2, 3), np.float32)])
    assert [call.args[0] for call in seen.call_args_list] == scopes
    np.testing.assert_array_equal(rows, np.ones((2, 3)))
