"""A self-contained program needs no server: its session has devices of its own, and is as good."""

import os
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from harness.verification.worker.in_process import POOL
from harness.worker.jobs import profile_step
from harness.worker.jobs.training import Training
from harness.worker.process.job import JobState
from harness.worker.session.capture_store import InitialValues, save
from harness.worker.session.named_session import NamedSession
from harness.worker.session.session import WorkerSession
from harness.worker.session.tensorflow_settings import OWN_DEVICES, Use, session_config
from harness.worker.session.timed_loop import ProcessFaults
from strategies.capture.capture import capture
from strategies.compile import compile_step
from strategies.plan.faults import Fault
from strategies.plan.schema import StepSummary
from strategies.registry import make_plan
from strategies.summary import summarise
from strategies.topology import Topology
from workloads import TrainStep

BATCH = [np.arange(12, dtype=np.float32).reshape(4, 3) / 12]


class Captured:
    """A step of one dense layer under momentum, as written by hand."""

    def __init__(self, folder: Path) -> None:
        import keras

        keras.backend.clear_session()
        weights = tf.Variable(tf.ones((3, 2)), name="weights")
        optimizer = keras.optimizers.SGD(0.01, momentum=0.9)
        optimizer.build([weights])
        step = TrainStep(
            loss=lambda batch: tf.reduce_mean(tf.square(tf.matmul(batch, weights))),
            variables=[weights],
            optimizer=optimizer,
        )
        captured = capture(step, tf.TensorSpec((3,), tf.float32))
        self.step = captured.step
        self.summary: StepSummary = summarise(captured.step, "dense", {})
        save(folder, captured.step, captured.initial)
        self.initial = InitialValues(folder)

    def program(self, strategy, replicas, task=0, **params):
        topology = Topology(replicas_per_task=replicas, batch_size=4)
        return compile_step(self.step, make_plan(strategy, params, self.summary, topology), task).program


@pytest.fixture(scope="module")
def captured(tmp_path_factory):
    return Captured(tmp_path_factory.mktemp("captured"))


@pytest.mark.parametrize(
    ("strategy", "replicas", "params", "alone"),
    [
        ("single", (1,), {}, True),
        ("none", (2, 1), {}, True),
        ("all-reduce", (1, 1), {"transport": "tcp"}, True),
        ("all-reduce", (1, 1), {"transport": "ring"}, False),
        ("sharded-update", (1, 1), {"min_bytes": 1}, True),
        # The first worker's program names no other task; the second one's comes to it.
        ("ps", (1, 1), {}, False),
    ],
)
def test_what_no_other_task_comes_to_is_self_contained(captured, strategy, replicas, params, alone) -> None:
    for task in range(len(replicas)):
        assert captured.program(strategy, replicas, task, **params).self_contained == alone


@pytest.mark.parametrize(
    ("strategy", "params", "n_waiting", "n_more"),
    [
        ("none", {}, 0, None),
        ("all-reduce", {"transport": "tcp"}, 1, None),
        ("all-reduce", {"compressor": "bf16"}, 1, None),
        ("sharded-update", {"transport": "tcp", "min_bytes": 1}, 2, 2),
        ("fully-sharded", {"transport": "tcp", "min_bytes": 1}, 2, 2),
    ],
)
def test_waits_for_owners_have_threads_beside_one_per_core(
    captured, strategy, params, n_waiting, n_more
) -> None:
    program = captured.program(strategy, (1, 1), **params)
    assert program.n_waiting == n_waiting
    assert (n_waiting > 1) == any(transfer.kind != "sum" for transfer in program.step.transfers)
    threads = session_config(program, Use.MANY_STEPS, OWN_DEVICES).inter_op_parallelism_threads
    assert threads == (0 if n_more is None else len(os.sched_getaffinity(0)) + n_more)


def steps(session, program):
    """Losses of two steps, and what variables hold afterwards."""
    session.load()
    session.setup()
    losses = [session.step([part[program.start : program.stop] for part in BATCH]) for _ in range(2)]
    return losses, session.read()


def test_a_step_is_the_same_as_on_a_server(captured) -> None:
    program = captured.program("none", (2, 1), task=0)
    servers = POOL.take([program])
    results = []
    for target in (OWN_DEVICES, servers[0].target):
        session = WorkerSession(program, target, captured.initial)
        results.append(steps(session, program))
        session.close()
    POOL.give_back([program], servers)
    (losses, values), (expected_losses, expected) = results
    np.testing.assert_array_equal(losses, expected_losses)
    assert values.keys() == expected.keys()
    for copy, parts in values.items():
        for (_, value), (_, right) in zip(parts, expected[copy], strict=True):
            np.testing.assert_array_equal(value, right)


def test_its_steps_are_traced_by_the_name_of_its_task_and_change_its_variables(captured) -> None:
    program = captured.program("none", (1, 1), task=1)
    session = WorkerSession(program, OWN_DEVICES, captured.initial)
    feeds = [part[program.start : program.stop] for part in BATCH]
    steps(session, program)
    before = session.step(feeds)
    trace = profile_step.trace(session, [feeds, feeds])
    assert {event.row for event in trace.events} == {"task:1 CPU:0"}
    # TensorFlow names the kernel otherwise where the processor has one of its own for it.
    assert any("MatMul" in event.op for event in trace.events)
    # Two traced steps have trained on.
    assert session.step(feeds) < before
    session.close()


def test_a_traced_step_has_the_faults_of_its_worker(captured) -> None:
    program = captured.program("none", (1, 1), task=1)
    session = WorkerSession(program, OWN_DEVICES, captured.initial)
    feeds = [part[program.start : program.stop] for part in BATCH]
    steps(session, program)
    delay_s = 2.0  # longer than the rest of a step on a busy machine
    slow = Fault(worker=1, kind="slow", delay_ms=1000 * delay_s, from_step=1)
    state = JobState()
    state.put(
        Training(session=session, task=1, weights=(1.0,), feeds=[feeds], faults=ProcessFaults(faults=[slow]))
    )
    trace = profile_step.trace_step(state, 1)
    assert trace.end_s - trace.start_s > delay_s
    assert state.get(Training).faults.n_made == 2
    session.close()


def test_what_its_variables_hold_can_be_asked_twice(captured) -> None:
    program = captured.program("none", (1, 1), task=1)
    session = WorkerSession(program, OWN_DEVICES, captured.initial)
    session.load()
    first = session.held_bytes()
    assert session.held_bytes() == first
    assert {task for task, _ in first} == {1}
    n_bytes = sum(v.bytes for v in captured.summary.variables)
    assert sum(first.values()) == n_bytes
    session.close()


def test_steps_before_a_traced_one_build_its_graph(captured, monkeypatch) -> None:
    program = captured.program("none", (1, 1), task=1)
    session = WorkerSession(program, OWN_DEVICES, captured.initial)
    feeds = [part[program.start : program.stop] for part in BATCH]
    steps(session, program)
    built = []
    prepare = NamedSession.traced

    def counted(*args):
        built.append(args)
        return prepare(*args)

    monkeypatch.setattr(NamedSession, "traced", counted)
    profile_step.trace(session, [feeds] * 4)
    assert len(built) == 1
    session.close()
