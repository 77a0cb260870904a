"""TensorFlow's own strategies weigh each loss once, however it is written: held to the captured step."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest
from rival_processes import SERVERS, Study, captures_in, started

from harness.cluster import ClusterShape
from harness.errors import CaseError
from harness.verification.captures import Captures
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
CENTRAL = "tf-central-storage"
RIVALS = {
    "tf-one-device": ((1, 1), OF_ONE),
    "tf-mirrored": ((1, 2), WAYS),
    "tf-multi-worker-mirrored": ((2, 1), WAYS),
    SERVERS: ((1, 1), OF_ONE),
}


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Captures]:
    folder = tmp_path_factory.mktemp("captures")
    with captures_in(folder, n_batches=N_STEPS, n_least=N_STEPS) as captures:
        yield captures


def study_of(captures: Captures, strategy: str, shape: tuple[int, int], way: str) -> Study:
    workers, replicas = shape
    cluster = ClusterShape(workers=workers, replicas_per_worker=replicas)
    return Study.of(captures, f"{FILE}:Regression:way={way}", strategy, cluster)


def verdicts_of(
    captures: Captures, strategy: str, shape: tuple[int, int], ways: Sequence[str], folder: Path
) -> Mapping[str, Verdict]:
    studies = {way: study_of(captures, strategy, shape, way) for way in ways}
    with started(studies["loss_object"].plan, folder) as processes:
        return {way: study.verdict(processes, N_STEPS) for way, study in studies.items()}


def different(verdicts: Mapping[str, Verdict]) -> Mapping[str, str | None]:
    """Ways that are not equivalent → why."""
    return {way: verdict.reason for way, verdict in verdicts.items() if verdict.equivalent is not True}


@pytest.mark.parametrize("strategy", RIVALS)
def test_however_a_loss_is_written_it_is_weighed_once(
    captures: Captures, strategy: str, tmp_path: Path
) -> None:
    assert different(verdicts_of(captures, strategy, *RIVALS[strategy], tmp_path)) == {}


def test_central_storage_counts_what_metrics_hold_more_than_once_and_nothing_else(
    captures: Captures, tmp_path: Path
) -> None:
    ways = [way for way in WAYS if way not in ASSIGNING]
    verdicts = verdicts_of(captures, CENTRAL, (1, 2), ways, tmp_path)
    assert different(verdicts).keys() == set(COUNTED_TWICE), different(verdicts)
    for way in COUNTED_TWICE:
        assert verdicts[way].equivalent is False
        wrong = [v.name for v in verdicts[way].variables if v.wrong]
        assert wrong
        assert all(name.endswith(("total", "count")) for name in wrong), wrong


@pytest.mark.parametrize("way", ["failing_under_a_strategy", "failing_to_be_made_under_a_strategy"])
def test_what_a_step_raises_is_shown_as_it_is(captures: Captures, way: str, tmp_path: Path) -> None:
    study = study_of(captures, "tf-mirrored", (1, 2), way)
    with (
        started(study.plan, tmp_path) as processes,
        pytest.raises(CaseError, match=r"AttributeError: .*'no_such_thing'"),
    ):
        study.verdict(processes, N_STEPS)
