"""TensorFlow's own strategies weigh each loss once, however it is written: held to the captured step."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from rival_processes import SERVERS, make_ready, started

from harness.cluster import ClusterShape
from harness.errors import CaseError
from harness.experiment.cases import Case
from harness.experiment.references import WorkloadRef, parse_strategy
from harness.planned_target import SEED
from harness.provision.child_processes import child_process
from harness.provision.protocols import ProcessSet
from harness.verification.captures import Captures, planned
from harness.verification.checks import first_steps, reference_of
from harness.verification.verdict import Verdict

pytestmark = pytest.mark.tensorflow

FILE = Path(__file__).parent / "loss_ways.py"
N_STEPS = 2
WAYS = (
    "loss_object",
    "loss_object_without_reduction",
    "loss_function",
    "reduced_mean",
    "average_loss",
    "average_loss_of_a_batch",
    "divided_by_replicas",
    "computed_by_the_model",
    "computed_of_two_outputs",
    "regularized",
    "scaled_regularization",
    "loss_scaled_by_the_optimizer",
    "whole_step",
    "compiled_model",
    "compiled_with_regularizers",
    "train_step_of_a_model",
    "model_that_builds_itself_in_its_step",
    "model_whose_step_builds_its_optimizer",
    "synchronized_layer",
    "under_a_policy_of_its_own",
)
# Where there is one replica, nobody divides by their number.
OF_ONE = (
    "loss_object",
    "whole_step",
    "under_a_policy_of_its_own",
    "compiled_with_regularizers",
    "model_that_builds_itself_in_its_step",
)
# CentralStorageStrategy refuses what replicas assign by themselves.
ASSIGNING = ("loss_scaled_by_the_optimizer", "synchronized_layer")
# Of a metric's sum that Keras assigns anew, it adds up what all replicas assign: what was there counts twice.
COUNTED_TWICE = (
    "compiled_model",
    "compiled_with_regularizers",
    "computed_of_two_outputs",
    "train_step_of_a_model",
)
RIVALS = {
    "tf-one-device": ((1, 1), OF_ONE),
    "tf-mirrored": ((1, 2), WAYS),
    "tf-central-storage": ((1, 2), tuple(way for way in WAYS if way not in (*ASSIGNING, *COUNTED_TWICE))),
    "tf-multi-worker-mirrored": ((2, 1), WAYS),
    SERVERS: ((1, 1), OF_ONE),
}


def case_of(
    strategy: str, shape: tuple[int, int], reference: str = f"{FILE}:Regression", **params: str
) -> Case:
    workers, replicas = shape
    return Case(
        id="",
        workload=WorkloadRef(reference=reference, params=params),
        strategy=parse_strategy(strategy, field="strategy"),
        shape=ClusterShape(workers=workers, replicas_per_worker=replicas),
    )


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Captures]:
    folder = tmp_path_factory.mktemp("captures")
    with child_process(folder) as process:
        yield Captures(folder, process.call, seed=SEED, n_batches=N_STEPS, n_least=N_STEPS)


def verdict_of(captures: Captures, case: Case, processes: ProcessSet) -> Verdict:
    """The verdict on one way; losses are part of it."""
    capture, plan = planned(captures, case)
    make_ready(processes, case, capture, plan, captures.batches(case, capture))
    reference = reference_of(captures, case, capture, N_STEPS)
    return reference.judge(first_steps(processes, N_STEPS))


@pytest.mark.parametrize("strategy", RIVALS)
def test_however_a_loss_is_written_it_is_weighed_once(
    captures: Captures, strategy: str, tmp_path: Path
) -> None:
    shape, ways = RIVALS[strategy]
    cases = {way: case_of(strategy, shape, way=way) for way in ways}
    with started(planned(captures, cases["loss_object"])[1], tmp_path) as processes:
        verdicts = {way: verdict_of(captures, case, processes) for way, case in cases.items()}
    assert {way: v.reason for way, v in verdicts.items() if v.equivalent is not True} == {}


def test_central_storage_counts_what_metrics_hold_more_than_once(captures: Captures, tmp_path: Path) -> None:
    cases = {way: case_of("tf-central-storage", (1, 2), way=way) for way in COUNTED_TWICE}
    with started(planned(captures, cases[COUNTED_TWICE[0]])[1], tmp_path) as processes:
        for case in cases.values():
            verdict = verdict_of(captures, case, processes)
            assert verdict.equivalent is False
            wrong = [v.name for v in verdict.variables if v.wrong]
            assert wrong
            assert all(name.endswith(("total", "count")) for name in wrong), wrong


@pytest.mark.parametrize("way", ["failing_under_a_strategy", "failing_to_be_made_under_a_strategy"])
def test_what_a_step_raises_is_shown_as_it_is(captures: Captures, way: str, tmp_path: Path) -> None:
    case = case_of("tf-mirrored", (1, 2), way=way)
    with (
        started(planned(captures, case)[1], tmp_path) as processes,
        pytest.raises(CaseError, match=r"AttributeError: .*'no_such_thing'"),
    ):
        verdict_of(captures, case, processes)
