"""Profile of a captured step, from traced steps of a real session."""

from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from harness.worker.jobs.step_profile import profile
from harness.worker.session.capture_store import InitialValues, save
from harness.worker.session.session import WorkerSession
from harness.worker.session.tensorflow_settings import OWN_DEVICES
from strategies.capture.capture import capture
from strategies.compile import compile_step
from strategies.registry import make_plan
from strategies.summary import summarise
from strategies.topology import Topology
from workloads import TrainStep

BATCH = [np.arange(24, dtype=np.float32).reshape(8, 3) / 24, np.arange(8, dtype=np.int32) % 3]


@pytest.fixture(scope="module")
def profiled(tmp_path_factory):
    """Two dense layers and a table, under momentum. Each id of a batch is looked up once."""
    import keras

    keras.backend.clear_session()
    first = keras.Variable(np.ones((3, 64), np.float32), name="first")
    last = keras.Variable(np.ones((64, 2), np.float32), name="last")
    table = keras.Variable(np.ones((5, 64), np.float32), name="table")

    def loss(batch):
        features, ids = batch
        known, places = tf.unique(ids)
        rows = tf.gather(tf.nn.embedding_lookup(table.value, known), places)
        hidden = tf.matmul(features, first.value) + rows
        return tf.reduce_mean(tf.square(tf.matmul(tf.tanh(hidden), last.value)))

    step = TrainStep(
        loss=loss, variables=[first, last, table], optimizer=keras.optimizers.SGD(0.1, momentum=0.9)
    )
    captured = capture(step, (tf.TensorSpec((3,), tf.float32), tf.TensorSpec((), tf.int32)))
    folder: Path = tmp_path_factory.mktemp("captured")
    save(folder, captured.step, captured.initial)
    assert captured.rows == {}
    summary = summarise(captured.step, "layers", captured.rows)
    topology = Topology(replicas_per_task=(1, 1), batch_size=8)
    compiled = compile_step(captured.step, make_plan("none", {}, summary, topology), 1)
    session = WorkerSession(compiled.program, OWN_DEVICES, InitialValues(folder))
    session.load()
    session.setup()
    feeds = [[part[compiled.program.start : compiled.program.stop] for part in BATCH]] * 4
    return profile(session, compiled.step, feeds, examples=4)


def test_the_trace_has_the_rows_whose_number_depends_on_the_ids(profiled) -> None:
    assert profiled.rows == {"table": 3}


def test_layers_are_used_in_order_and_gradients_are_ready_after_the_last(profiled) -> None:
    first, last, table = (profiled.variables[name] for name in ("first", "last", "table"))
    assert max(first.needed_s, table.needed_s) < last.needed_s
    ready_s = [times.ready_s for times in (first, last, table)]
    assert last.needed_s < min(ready_s)
    assert max(ready_s) <= profiled.compute_s


def test_every_trained_variable_has_an_update_and_all_are_within_the_step(profiled) -> None:
    updates_s = [times.update_s for times in profiled.variables.values()]
    assert all(profiled.variables[name].update_s > 0 for name in ("first", "last", "table"))
    assert 0 < sum(updates_s) <= profiled.update_s * (1 + 1e-9)
    assert profiled.examples == 4
