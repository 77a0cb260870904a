"""Steps that cannot take a shard, or any batch: one line with the user's own and the way out."""

from dataclasses import replace
from pathlib import Path

import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from harness.cluster import ClusterShape
from harness.errors import UsageError
from harness.experiment.cases import Case
from harness.experiment.references import StrategyRef, WorkloadRef
from harness.verification.worker.capture import capture
from harness.verification.worker.jobs import StoredSteps, reference, verify
from harness.worker.jobs.batches import write_batches
from harness.worker.process.job import JobState
from strategies.registry import make_plan
from strategies.topology import Topology

FILE = """
import keras
import tensorflow as tf

from workloads import TrainStep


class Step:
    name = "step"
    batch_size = 6
    flops_per_example = None

    def train_step(self):
        self.weight = tf.Variable(tf.ones((4, 1)), name="weight")
        self.offsets = tf.Variable(tf.zeros((6, 1)), name="offsets")
        self.last = tf.Variable(tf.zeros((6, 1)), trainable=False, name="last")
        variables = [self.weight, self.offsets]
        return TrainStep(loss=self.loss, variables=variables, optimizer=keras.optimizers.SGD(0.1))

    def loss(self, batch):
        moved = self.shifted(batch @ self.weight)
        return tf.reduce_mean(tf.square(moved)) + tf.reduce_sum(self.offsets)

    def dataset(self, seed):
        return tf.data.Dataset.from_tensor_slices(tf.random.stateless_normal((24, 4), [1, 2]))


class AddsConstant(Step):
    def shifted(self, rows):
        return rows + tf.random.stateless_normal((6, 1), [3, 4])  # here


class Reshapes(Step):
    def shifted(self, rows):
        return tf.reshape(rows, (2, 3))  # here


class ReadsVariable(Step):
    def shifted(self, rows):
        return rows + self.offsets  # here


class Assigns(Step):
    def shifted(self, rows):
        self.last.assign(rows * 2.0)  # here
        return rows


class InFunction(Step):
    @tf.function
    def shifted(self, rows):
        return tf.reshape(rows, (6,))  # here


class Asserts(Step):
    def shifted(self, rows):
        tf.debugging.assert_less(rows, -9.0, message="rows must be small")  # here
        return rows
"""
OF_SHARD = "train_step: must take a shard of a batch of 6 examples, got "
WAY_OUT = (
    ", and takes all of them; take sizes from tf.shape(x)[0], leave the batch axis None, or use one worker "
    "with one replica"
)
TOLD = {
    "AddsConstant": (OF_SHARD, "Incompatible shapes: ", "at 'add'", WAY_OUT),
    "Reshapes": (OF_SHARD, "Input to reshape is a tensor with 3 values", "at 'Reshape'", WAY_OUT),
    "ReadsVariable": (OF_SHARD, "at 'add' with variable 'offsets' of shape [6, 1]", "", WAY_OUT),
    "Assigns": (OF_SHARD, "shape [3, 1] for variable 'last' of shape [6, 1]", "", WAY_OUT),
    "InFunction": (OF_SHARD, "Input to reshape is a tensor with 3 values", "at 'Reshape'", WAY_OUT),
    "Asserts": ("train_step: must run on a batch, got ", "assertion failed: [rows must be small]", "", ")"),
}
TWO = Topology(replicas_per_task=(1, 1), batch_size=6)


def laid(folder: Path, name: str):
    """A captured workload of the file above: its summary and its stored steps."""
    path = folder / "steps.py"
    path.write_text(FILE)
    case = Case(
        id="",
        workload=WorkloadRef(reference=f"{path}:{name}"),
        strategy=StrategyRef(name="all-reduce"),
        shape=ClusterShape(workers=2),
    )
    captured = capture(JobState(), case, 0, str(folder / "capture"), 2, 0, None)
    write_batches(JobState(), case, 0, str(folder / "batches"), 2, 2)
    return captured.summary, StoredSteps(capture=folder / "capture", batches=folder / "batches", n_steps=2)


def line_of(name: str) -> int:
    """The line of a class above that says that it is the one."""
    lines = FILE.splitlines()
    begin = lines.index(f"class {name}(Step):")
    return next(n + 1 for n in range(begin, len(lines)) if lines[n].endswith("# here"))


@pytest.mark.parametrize("name", TOLD)
def test_a_reference_names_the_users_line(tmp_path: Path, name: str) -> None:
    _, steps = laid(tmp_path, name)
    with pytest.raises(UsageError) as caught:
        reference(JobState(), steps, TWO)
    begin, reason, operation, end = TOLD[name]
    text = str(caught.value)
    assert text.startswith(begin)
    assert text.endswith(end)
    assert reason in text
    assert operation in text
    assert f"steps.py:{line_of(name)})" in text
    assert "\n" not in text


@pytest.mark.parametrize("strategy", ["all-reduce", "ps"])
@pytest.mark.parametrize("name", ["ReadsVariable", "Assigns"])
def test_verify_names_it_though_a_strategy_fails_first(tmp_path: Path, name: str, strategy: str) -> None:
    summary, steps = laid(tmp_path, name)
    plan = make_plan(strategy, None, summary, TWO)
    with pytest.raises(UsageError, match=rf"^{OF_SHARD}.*steps\.py:{line_of(name)}\)"):
        verify(JobState(), replace(steps, float64=True), plan, False)


def test_one_replica_takes_the_whole_batch(tmp_path: Path) -> None:
    _, steps = laid(tmp_path, "ReadsVariable")
    alone = Topology(replicas_per_task=(1,), batch_size=6)
    assert len(reference(JobState(), steps, alone).losses) == 2
