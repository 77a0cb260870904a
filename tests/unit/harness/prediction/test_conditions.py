"""Conditions of predictions, and the experiments that measure for them."""

import shlex

import pytest

from harness.errors import UsageError
from harness.experiment.cases import expand
from harness.experiment.load import laid_over
from harness.prediction.conditions import (
    KEYS,
    conditions,
    is_set,
    probe_command,
    probe_experiment,
    probing,
    profiling,
)

DOCUMENT = {
    "name": "mine",
    "workloads": ["digits-mlp", {"name": "wide-mlp", "batch_size": 64}],
    "strategies": ["none", "ps"],
    "measure": {"rounds": 3},
}


def read(*settings: str, of_run: bool = True):
    return conditions(DOCUMENT, settings=settings, of_run=of_run)


def test_workers_that_no_provider_starts_can_be_predicted() -> None:
    spec = read("cluster.link.rate_mbit=100", "cluster.workers=[8, 512]", "faults=[{worker: 7, kind: slow}]")
    assert (spec.cluster.link.rate_mbit, spec.cluster.workers) == ((100.0,), (8, 512))
    assert spec.scenarios[0].faults[0].delay_ms == 100.0
    with pytest.raises(UsageError, match="which cannot limit links"):
        laid_over(DOCUMENT, settings=["cluster.link.rate_mbit=100"])


@pytest.mark.parametrize(
    "setting", [{"cluster.workers": [2]}, {"cluster.workers.0": 2}, {"cluster": {"workers": 2}}]
)
def test_a_setting_of_a_part_or_of_a_section_counts(setting: dict[str, object]) -> None:
    assert is_set("cluster.workers", {"measure.steps": 3, **setting})


@pytest.mark.parametrize(
    "setting", [{"cluster.workers_per_host": 2}, {"cluster": {"link": 2}}, {"cluster": 2}]
)
def test_a_section_without_the_key_does_not_count(setting: dict[str, object]) -> None:
    assert not is_set("cluster.workers", setting)


def test_parameters_are_set_of_references_that_are_written_as_text() -> None:
    spec = read("workloads.0.batch_size=32", "strategies.1.staleness=2")
    assert [workload.params for workload in spec.workloads] == [{"batch_size": 32}, {"batch_size": 64}]
    assert str(spec.strategies[1]) == "ps:staleness=2"


@pytest.mark.parametrize("path", ["measure.steps", "cluster.memory_per_worker", "cluster.link.burst_kb"])
def test_keys_that_change_no_prediction_of_a_run_are_refused_with_those_that_do(path: str) -> None:
    with pytest.raises(UsageError) as refusal:
        read(f"{path}=2")
    assert refusal.value.field == f"set {path}"
    assert all(key in refusal.value.message for key in KEYS)


def test_an_experiment_measures_under_its_own_keys() -> None:
    assert read("measure.steps=7", of_run=False).measure.steps == 7
    with pytest.raises(UsageError, match="changes no prediction"):
        read("measure.repeats=7", of_run=False)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("cluster.replicas_per_worker=2", "several replicas of a worker are not simulated"),
        ("cluster.cores_per_worker=[1, 2]", "must be one number for predictions, got 1, 2"),
        ("cluster.link={workers: {1: {rate_mbit: 10}}}", "in which all links have one rate"),
    ],
)
def test_what_is_not_simulated_is_refused(setting: str, message: str) -> None:
    path, _, value = setting.partition("=")
    document = {**DOCUMENT, "cluster": {"workers": 2}}
    with pytest.raises(UsageError, match=message):
        conditions(document, overrides={path: laid_over_value(value)}, of_run=True)


def laid_over_value(text: str) -> object:
    from harness.experiment.load import parse

    return parse(text)


def test_workloads_are_profiled_on_one_and_two_workers_without_anything_else() -> None:
    settings = ["cluster.link.rate_mbit=100", "cluster.cores_per_worker=2", "strategies.1.staleness=2"]
    spec = profiling(DOCUMENT, settings=settings, surroundings={})
    assert [str(strategy) for strategy in spec.strategies] == ["none"]
    assert (spec.cluster.workers, spec.cluster.cores_per_worker) == ((1, 2), (2,))
    assert (spec.cluster.link.limits_mbit, spec.measure.rounds) == ({}, 3)
    with pytest.raises(UsageError, match="must be one for predictions, got local, docker"):
        profiling(DOCUMENT, settings=["cluster.provider=[local, docker]"], surroundings={})


def test_a_probe_runs_on_the_experiments_workers() -> None:
    settings = [
        "cluster.provider=docker",
        "cluster.cores_per_worker=2",
        "cluster.image=mine:dev",
        "cluster.workers=5",
    ]
    spec = probing(laid_over(DOCUMENT, settings=settings).cluster, {})
    cluster = spec.cluster
    assert (cluster.provider, cluster.cores_per_worker, cluster.image) == (("docker",), (2,), ("mine:dev",))
    assert (spec.name, cluster.workers) == ("probe", (2,))
    assert (
        probe_command(spec)
        == "stratbench probe --set cluster.provider=docker --set cluster.cores_per_worker=2 --set "
        "cluster.image=mine:dev"
    )
    assert probe_command(probing(laid_over(DOCUMENT).cluster, {})) == "stratbench probe"


@pytest.mark.parametrize(
    ("settings", "workers"),
    [
        ([], {2, 4}),
        (["cluster.provider=cluster", "cluster.address=head:6379"], {2}),
        (["cluster.device=gpu"], {2}),
        (["cluster.cores_per_worker=2"], {2}),
        (["cluster.device=gpu", "cluster.workers=[2, 4]"], {2, 4}),
        (["cluster.workers=3"], {3}),
        (["workloads=[digits-mlp]", "strategies=[none, ps]"], {2, 4}),
    ],
)
def test_a_probe_has_four_workers_where_they_have_room(settings: list[str], workers: set[int]) -> None:
    spec = probe_experiment({}, settings=settings)
    assert {case.shape.workers for case in expand(spec)} == workers
    if not any(setting.startswith(("cluster.workers", "workloads")) for setting in settings):
        assert probing(laid_over(DOCUMENT, settings=settings).cluster, {}) == spec
        words = shlex.split(probe_command(spec))[2:]
        assert probe_experiment({}, settings=[word for word in words if word != "--set"]) == spec


def test_a_filter_of_ones_own_for_a_probe_matches_a_case() -> None:
    spec = probe_experiment({}, settings=["matrix.exclude=[{workers: 3}]"])
    with pytest.raises(UsageError, match="must match at least one case"):
        expand(spec)
