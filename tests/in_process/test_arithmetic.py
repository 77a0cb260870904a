"""TensorFlow's switch of TF32 while steps are checked and while they are timed, seen without a GPU."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import tensorflow as tf

from harness.cluster import ClusterShape
from harness.errors import UNSUPPORTED, CaseError
from harness.experiment.cases import Case
from harness.experiment.model import Computation
from harness.experiment.references import StrategyRef, WorkloadRef
from harness.verification.worker import jobs, users_step
from harness.verification.worker.capture import capture
from harness.worker.jobs.arithmetic import allows_tf32, set_tf32
from harness.worker.jobs.batches import open_pipeline
from harness.worker.jobs.training import Training
from harness.worker.process.job import JobState
from harness.worker.session.capture_store import load_step
from strategies.topology import Topology
from workloads.data.examples import WorkerShare

pytestmark = pytest.mark.tensorflow

WORKLOAD = """
import keras
import numpy as np
import tensorflow as tf

from workloads import TrainStep


class Switching:
    name = "switching"
    batch_size = 4
    flops_per_example = None

    def train_step(self):
        {in_train_step}
        w = tf.Variable([1.0, 2.0], name="w")

        def loss(x):
            return tf.reduce_mean(tf.square(tf.tensordot(x, w, 1)))

        return TrainStep(loss=loss, variables=[w], optimizer=keras.optimizers.SGD(0.1))

    def dataset(self, seed):
        {in_dataset}
        return tf.data.Dataset.from_tensor_slices(np.ones((8, 2), np.float32))
"""
SWITCH = "tf.config.experimental.enable_tensor_float_32_execution({})"


class LookedError(Exception):
    """Ends a job where its arithmetic has been looked at."""


@pytest.fixture(autouse=True)
def as_tensorflow_comes(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TF_CUDNN_DETERMINISTIC", "")
    monkeypatch.delenv("NVIDIA_TF32_OVERRIDE", raising=False)
    assert allows_tf32()
    yield
    tf.config.experimental.enable_tensor_float_32_execution(enabled=True)


def arithmetic() -> tuple[bool, str]:
    return allows_tf32(), os.environ["TF_CUDNN_DETERMINISTIC"]


def switching_case(folder: Path, device: Any, tf32: bool | None = None, **switches: str) -> Case:
    file = folder / "switching.py"
    file.write_text(WORKLOAD.format(**{"in_train_step": "pass", "in_dataset": "pass"} | switches))
    return Case(
        id="",
        workload=WorkloadRef(reference=f"{file}:Switching"),
        strategy=StrategyRef(name="single"),
        shape=ClusterShape(workers=1, device=device),
        computation=Computation(tf32=tf32),
    )


def of_topology(device: Any) -> Topology:
    return Topology(replicas_per_task=(1,), batch_size=4, device=device)


STEPS = jobs.StoredSteps(capture=Path("c"), batches=Path("b"), n_steps=1)
JOBS: dict[str, Callable[[Any], object]] = {
    "reference": lambda on: jobs.reference(JobState(), STEPS, of_topology(on)),
    "separability": lambda on: jobs.separability(JobState(), STEPS, of_topology(on)),
    "bounds": lambda on: jobs.bounds(JobState(), STEPS, plan_for(on)),
    "verdict": lambda on: jobs.verdict(
        JobState(), STEPS, plan_for(on), reference=cast("Any", SimpleNamespace())
    ),
    "verify": lambda on: jobs.verify(JobState(), STEPS, plan_for(on), False),
}


def plan_for(device: str) -> Any:
    return SimpleNamespace(device=device)


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize(
    ("device", "expected"), [("gpu", (False, "1")), ("cpu", (True, "")), ("tpu", (True, ""))]
)
def test_jobs_that_check_compute_exactly_on_gpus_alone(
    monkeypatch: pytest.MonkeyPatch, job: str, device: str, expected: tuple[bool, str]
) -> None:
    seen: list[tuple[bool, str]] = []

    def look(*_: object, **__: object) -> Any:
        seen.append(arithmetic())
        raise LookedError

    monkeypatch.setattr(jobs.StoredSteps, "load", look)
    monkeypatch.setattr(jobs.StoredSteps, "separability", look)
    with pytest.raises(LookedError):
        JOBS[job](device)
    assert seen == [expected]


@pytest.mark.parametrize(("device", "expected"), [("gpu", "1"), ("cpu", "")])
def test_a_model_is_built_with_kernels_that_sum_alike(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, expected: str
) -> None:
    def look(*_: object) -> Any:
        raise LookedError

    monkeypatch.setattr("harness.verification.worker.capture.workload_of", look)
    with pytest.raises(LookedError):
        capture(JobState(), switching_case(tmp_path, device), 0, str(tmp_path / "c"), 1, 0, None)
    assert os.environ["TF_CUDNN_DETERMINISTIC"] == expected


@pytest.mark.parametrize(("device", "expected"), [("gpu", (False, "1")), ("cpu", (True, ""))])
def test_a_users_step_is_compared_exactly_whatever_its_code_switches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, device: str, expected: tuple[bool, str]
) -> None:
    seen: list[tuple[bool, str]] = []
    compare = users_step.check_capture

    def look(*args: Any) -> Any:
        seen.append(arithmetic())
        return compare(*args)

    monkeypatch.setattr(users_step, "check_capture", look)
    case = switching_case(tmp_path, device, in_train_step=SWITCH.format(True))
    facts = capture(JobState(), case, 0, str(tmp_path / "capture"), 1, 2, None)
    assert seen == [expected]
    assert facts.verdict is not None
    assert facts.verdict.equal


@pytest.mark.parametrize(
    ("device", "switches", "is_noted"),
    [("gpu", SWITCH.format(False), True), ("gpu", "pass", False), ("cpu", SWITCH.format(False), False)],
)
def test_a_workload_that_switches_tf32_off_is_named(
    tmp_path: Path, device: str, switches: str, is_noted: bool
) -> None:
    case = switching_case(tmp_path, device, in_train_step=switches)
    capture(JobState(), case, 0, str(tmp_path / "capture"), 1, 0, None)
    notes = load_step(tmp_path / "capture").notes
    assert any("the workload switches TF32 off itself" in note for note in notes) is is_noted


@pytest.mark.parametrize("tf32", [True, False])
def test_timed_steps_have_what_was_asked_for(tf32: bool) -> None:
    for before in (True, False):
        tf.config.experimental.enable_tensor_float_32_execution(before)
        set_tf32(JobState(), tf32)
        assert arithmetic() == (tf32, "")


@pytest.mark.parametrize("before", [True, False])
def test_devices_without_tf32_stay_as_they_are(before: bool) -> None:
    tf.config.experimental.enable_tensor_float_32_execution(before)
    set_tf32(JobState(), None)
    assert allows_tf32() is before


@pytest.mark.parametrize(("tf32", "after"), [(True, True), (False, False), (None, False)])
def test_a_dataset_that_switches_tf32_changes_no_timed_step(
    tmp_path: Path, tf32: bool | None, after: bool
) -> None:
    switched = SWITCH.format(not tf32 if tf32 is not None else False)
    case = switching_case(tmp_path, "gpu", tf32, in_dataset=switched)
    state = JobState()
    state.put(Training(session=cast("Any", SimpleNamespace(prepare=list)), task=0, weights=(1.0,)))
    open_pipeline(state, case, 0, WorkerShare(worker=0, n_workers=1, n_examples=4, global_batch=4))
    assert allows_tf32() is after


def test_a_variable_that_forbids_tf32_is_refused_where_it_was_asked_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NVIDIA_TF32_OVERRIDE", "0")
    with pytest.raises(
        CaseError, match=r"got NVIDIA_TF32_OVERRIDE=0; unset it, or set measure.tf32=false"
    ) as error:
        set_tf32(JobState(), True)
    assert error.value.kind == UNSUPPORTED
    set_tf32(JobState(), False)
    set_tf32(JobState(), None)
