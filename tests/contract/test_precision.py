"""Mixed precision: what is captured computes in it, means the same, and what does not follow is refused."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import mixed_steps
import numpy as np
import pytest
from cases import Case as Checked

from harness.cluster import ClusterShape
from harness.errors import CaseError
from harness.experiment.cases import Case
from harness.experiment.model import Computation
from harness.experiment.references import StrategyRef, WorkloadRef
from harness.verification.worker.capture import capture
from harness.verification.worker.in_process import InProcessCluster, programs_of
from harness.worker.jobs.arithmetic import types_of_products
from harness.worker.jobs.batches import read_batches, write_batches
from harness.worker.process.job import JobState
from harness.worker.session.capture_store import InitialValues, in_float64, load_step
from strategies.tf_bridge.float64 import step_in_float64

pytestmark = pytest.mark.tensorflow

FILE = Path(mixed_steps.__file__)
N_STEPS = 3


def captured(folder: Path, result: str, precision: Any, *, float64: bool = True, **params: Any) -> Checked:
    case = Case(
        id="",
        workload=WorkloadRef(reference=f"{FILE}:{result}", params=params),
        strategy=StrategyRef(name="all-reduce"),
        shape=ClusterShape(workers=2),
        computation=Computation(precision=precision),
    )
    at = folder / f"{result}-{precision}-{float64}"
    state = JobState()
    facts = capture(state, case, 0, str(at / "capture"), 2, 0, None)
    write_batches(state, case, 0, str(at / "batches"), N_STEPS, N_STEPS)
    step, batches = load_step(at / "capture"), read_batches(at / "batches")
    return Checked(
        step=step_in_float64(step) if float64 else step,
        summary=facts.summary,
        initial=InitialValues(at / "capture", float64=float64),
        batches=[[in_float64(part) for part in batch] for batch in batches] if float64 else batches,
    )


@pytest.mark.parametrize(("precision", "dtype"), [("bfloat16", "bfloat16"), ("float16", "half")])
@pytest.mark.parametrize("result", ["Layers", "Compiled"])
def test_products_compute_in_it_and_variables_stay(
    shared: Path, result: str, precision: str, dtype: str
) -> None:
    case = captured(shared, result, precision, float64=False)
    assert set(types_of_products(case.step.graph)) == {dtype}
    assert {v.dtype for v in case.summary.variables if v.kind == "trainable"} == {"float"}
    assert keras.config.dtype_policy().name == "float32", "the policy of before holds again"
    scales = any(v.name.endswith("dynamic_scale") for v in case.step.variables)
    assert scales is (precision == "float16")


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
@pytest.mark.parametrize("strategy", ["all-reduce", "ps"])
def test_strategies_are_equivalent_in_it(shared: Path, strategy: str, precision: str) -> None:
    wide = captured(shared / strategy, "Layers", precision)
    verdict = wide.check(wide.plan(strategy, (1, 1)))
    assert verdict.equivalent, verdict.reason
    own = captured(shared / strategy, "Layers", precision, float64=False)
    verdict = own.check(own.plan(strategy, (1, 1)))
    assert verdict.equivalent is not False, verdict.reason


@pytest.mark.parametrize("clip", [None, 0.1])
def test_a_loss_scale_changes_no_step(shared: Path, clip: float | None) -> None:
    folder = shared / f"clip-{clip}"
    params = {"optimizer": "sgd"} | ({} if clip is None else {"clip": clip})
    plain, scaled = (stepped(captured(folder, "Layers", p, **params)) for p in ("float32", "float16"))
    for name, value in plain.items():
        np.testing.assert_allclose(scaled[name], value, rtol=1e-9, atol=1e-12, err_msg=name)
    assert scaled["loss_scale_optimizer/dynamic_scale"] == 2.0**15
    assert scaled["loss_scale_optimizer/step_counter"] == N_STEPS


def stepped(case: Checked) -> Mapping[str, Any]:
    """Variables after the batches, on one device."""
    plan = case.plan("single", (1,))
    with InProcessCluster(programs_of(case.step, plan), case.initial) as cluster:
        for batch in case.batches:
            cluster.step(batch)
        return {name: value for (name, _), value in cluster.read().items()}


def test_what_stays_wider_is_told(shared: Path) -> None:
    case = captured(shared, "PartlyWide", "bfloat16")
    message = "of 8 matrix products and convolutions compute in bfloat16; the model keeps the others wider"
    assert [note for note in case.step.notes if note.endswith(message)] == [f"5 {message}"]


@pytest.mark.parametrize(
    ("result", "precision", "message"),
    [
        ("PlainOperations", "bfloat16", "got a step that computes in float alone; build it of Keras layers"),
        ("OwnPolicy", "bfloat16", "must leave Keras's policy at mixed_bfloat16 .* got mixed_float16; drop"),
        ("WholeStep", "float16", "must scale its loss for the precision float16, got one without"),
    ],
)
def test_what_does_not_follow_is_refused(shared: Path, result: str, precision: str, message: str) -> None:
    with pytest.raises(CaseError, match=message) as failure:
        captured(shared, result, precision)
    assert failure.value.kind == "unsupported"
    assert "\n" not in str(failure.value)
    assert keras.config.dtype_policy().name == "float32"


def test_a_policy_of_its_own_is_what_its_author_wrote(shared: Path) -> None:
    case = captured(shared / "own", "OwnPolicy", "float32", float64=False)
    assert set(types_of_products(case.step.graph)) == {"half"}
    assert keras.config.dtype_policy().name == "float32"
    whole = captured(shared / "own", "WholeStep", "bfloat16", float64=False)
    assert set(types_of_products(whole.step.graph)) == {"bfloat16"}
