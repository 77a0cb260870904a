"""Batches that no machine has the memory for: their cases fail by name, and the others of the run go on."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from watched_run import records, watched

pytestmark = [pytest.mark.ray, pytest.mark.tensorflow]

# Each of its steps asks for batch_size⁴ floats at once: of 8,192 examples, shared by two workers, 1 PiB each.
# No process has addresses for so much, so that it is refused whatever the kernel promises to others.
FILE = """
import keras
import tensorflow as tf

from workloads import TrainStep


class Outer:
    name = "outer"
    flops_per_example = None

    def __init__(self, batch_size: int = 8):
        self.batch_size = batch_size

    def train_step(self):
        weight = tf.Variable(tf.ones((4, 1)), name="weight")
        optimizer = keras.optimizers.SGD(0.1)
        optimizer.build([weight])

        def loss(batch):
            value = tf.reduce_mean(tf.square(batch @ weight))
            return tf.reduce_mean(tf.fill([tf.shape(batch)[0]] * 4, value))

        return TrainStep(loss=loss, variables=[weight], optimizer=optimizer)

    def dataset(self, seed):
        return tf.data.Dataset.from_tensor_slices(tf.random.stateless_normal((64, 4), (seed, 0)))
"""
EXPERIMENT = """
name: too-large
workloads: [{name: "mine.py:Outer", batch_size: 8}, {name: "mine.py:Outer", batch_size: 8192},
            {name: "mine.py:Outer", batch_size: 35184372088832}]
strategies: [single, "ps:sync=false"]
cluster: {provider: local, workers: 2}
measure: {steps: 4, warmup_steps: 1, repeats: 1, rounds: 2, window_s: 0}
"""
FITS, IN_STEPS, IN_STAGING = 8, 8192, 2**45


@dataclass(frozen=True)
class Ended:
    status: int
    records: list[dict[str, Any]]

    def of(self, batch_size: int, strategy: str) -> dict[str, Any]:
        (record,) = (
            record
            for record in self.records
            if (record["workload_params"]["batch_size"], record["strategy"]) == (batch_size, strategy)
        )
        return record


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ended]:
    folder = tmp_path_factory.mktemp("large")
    (folder / "mine.py").write_text(FILE)
    (folder / "large.yaml").write_text(EXPERIMENT)
    # Else the allocator of oneDNN waits ten seconds, at each refusal, for memory that nobody will free.
    system = {"TF_ONEDNN_USE_SYSTEM_ALLOCATOR": "1"}
    with watched(["run", "large.yaml", "--out", "out"], folder, **system) as run:
        status, _, errors = run.finish()
        assert (folder / "out").is_dir(), errors
        yield Ended(status=status, records=records(folder / "out"))


@pytest.mark.parametrize(
    ("strategy", "job", "stage"),
    # What is compared with a reference, made beside the workers, and what is not, which fails on these.
    [("single", "reference", "check"), ("ps", "run_steps", "run")],
)
def test_a_step_that_memory_cannot_hold_names_batch_and_way_out(
    ended: Ended, strategy: str, job: str, stage: str
) -> None:
    record = ended.of(IN_STEPS, strategy)
    assert (record["status"], record["error"]["type"]) == ("failed", "out-of-memory")
    message = record["error"]["message"]
    assert message.startswith("mine.py:Outer.batch_size: must fit in memory, got 8192: ")
    assert f"{job} was refused memory (OOM when allocating tensor with shape[" in message
    assert message.endswith("; lower batch_size, or give workers more memory")
    assert "\n" not in message
    assert record["error"]["stage"] == stage


@pytest.mark.parametrize("strategy", ["single", "ps"])
def test_batches_that_memory_cannot_hold_are_not_laid(ended: Ended, strategy: str) -> None:
    error = ended.of(IN_STAGING, strategy)["error"]
    assert error["type"] == "out-of-memory"
    message = f"mine.py:Outer.batch_size: must fit in memory, got {IN_STAGING}, whose"
    assert error["message"].startswith(message)


def test_other_cases_of_the_run_go_on(ended: Ended) -> None:
    assert [ended.of(FITS, strategy)["status"] for strategy in ("single", "ps")] == ["ok", "ok"]
    assert ended.status == 1
