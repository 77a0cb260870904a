"""A test's words choose one case of an experiment, and the experiment is left with no other."""

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from harness.errors import UsageError
from harness.experiment.cases import expand
from harness.experiment.load import load_experiment, shipped
from harness.pytest_plugin.one_case import CaseRequest, one_case, with_one_step

SWEEP = """
name: sweep
workloads: [digits-mlp, {name: digits-mlp, batch_size: 32}]
strategies: [single, none, all-reduce, "all-reduce:chunk_size=16"]
cluster: {workers: [2, 3], link: {rate_mbit: [null, 100]}, provider: docker}
measure: {precision: [float32, bfloat16], aa: true, exposed_comm: true, until: {ratio_ci: 3%, at_most: 10m}}
faults: {fine: [], dropping: [{worker: 1, kind: drop}]}
"""
FULL: Mapping[str, object] = {
    "workload": "digits-mlp",
    "strategy": "all-reduce",
    "workers": 3,
    "faults": "dropping",
    "settings": {"cluster.link.rate_mbit": "100", "measure.precision": "bfloat16"},
}


@pytest.fixture
def sweep(tmp_path: Path) -> str:
    path = tmp_path / "sweep.yaml"
    path.write_text(SWEEP)
    return str(path)


@pytest.mark.parametrize("name", [path.stem for path in shipped()])
def test_each_case_of_a_shipped_experiment_stays_itself(name: str, tmp_path: Path) -> None:
    for case in expand(load_experiment(name))[::7]:
        shape = case.shape
        settings = {
            "cluster.device": shape.device,
            "cluster.link.rate_mbit": shape.link.rate_mbit,
            "measure.precision": case.computation.precision,
            "measure.xla": case.computation.xla,
            "measure.aa": False,
            "measure.exposed_comm": False,
        }
        chosen = one_case(
            CaseRequest(
                experiment=name,
                workload=str(case.workload),
                strategy=str(case.strategy),
                # A case of one device is there for every number of workers.
                workers=None if shape.n_replicas == 1 else shape.workers,
                faults=case.scenario.name or None,
                settings=settings,
            )
        )
        (left,) = expand(chosen.spec)
        path = tmp_path / "written.yaml"
        path.write_text(json.dumps(chosen.spec.to_document()))
        (read,) = expand(load_experiment(str(path)))
        assert {left.id, read.id, chosen.case.id} == {case.id}


def test_what_a_sweep_has_several_of_is_settled_by_settings(sweep: str) -> None:
    chosen = one_case(CaseRequest(experiment=sweep, **FULL))
    assert (chosen.case.shape.workers, chosen.case.scenario.name) == (3, "dropping")
    assert chosen.case.shape.link.rate_mbit == 100
    assert chosen.case.computation.precision == "bfloat16"
    # One without further parameters goes before others that have them too.
    assert (str(chosen.case.workload), str(chosen.case.strategy)) == ("digits-mlp", "all-reduce")
    # The control is measured beside it, as the experiment says; there is no second baseline.
    ids = [case.id for case in expand(chosen.spec)]
    assert len(ids) == 2
    assert chosen.case.id == ids[0]
    assert chosen.spec.measure.until is None


def test_parameters_choose_among_cases_of_one_name(sweep: str) -> None:
    request = {**FULL, "strategy": "all-reduce:chunk_size=16", "workload": "digits-mlp:batch_size=32"}
    chosen = one_case(CaseRequest(experiment=sweep, **request))
    assert str(chosen.case.strategy) == "all-reduce:chunk_size=16"
    assert chosen.case.batch_size == 32


def test_a_case_of_one_device_is_one_for_all_numbers_of_workers(sweep: str) -> None:
    settings = {"measure.precision": "float32", "measure.aa": False, "measure.exposed_comm": False}
    chosen = one_case(
        CaseRequest(experiment=sweep, workload="digits-mlp", strategy="single", settings=settings)
    )
    assert [case.id for case in expand(chosen.spec)] == [chosen.case.id]


def test_several_and_none_are_told_in_a_line_with_what_there_is(sweep: str) -> None:
    with pytest.raises(UsageError, match=r"must be one case of quickstart, got 5: .*digits-cnn ps 2x1"):
        one_case(CaseRequest(experiment="quickstart", workload="digits-cnn"))
    with pytest.raises(UsageError, match=r"faults: must be .*, got 'droping'; did you mean 'dropping'"):
        one_case(CaseRequest(experiment=sweep, **{**FULL, "faults": "droping"}))
    with pytest.raises(UsageError, match=r"got 15: .* and 7 more; give the workload, strategy"):
        one_case(CaseRequest(experiment="quickstart"))
    with pytest.raises(UsageError, match=r"strategy: must be .*, got 'al-reduce'; did you mean 'all-reduce'"):
        one_case(CaseRequest(experiment="quickstart", strategy="al-reduce"))
    with pytest.raises(UsageError, match=r"workload: must be .*; known are digits-cnn.*, wide-mlp, dlrm"):
        one_case(CaseRequest(experiment="quickstart", workload="keras:ResNet50"))
    with pytest.raises(UsageError, match=r"measure\.repeat: unknown key, did you mean 'repeats'"):
        one_case(CaseRequest(experiment="quickstart", settings={"measure.repeat": 3}))
    # What differs by its link alone has the same title.
    twice = {**FULL, "settings": {"measure.precision": "bfloat16"}}
    with pytest.raises(UsageError, match=r"got 2: digits-mlp-all-reduce-3x1-\w{8}, digits-mlp-all-red"):
        one_case(CaseRequest(experiment=sweep, **twice))


def test_text_means_what_it_means_after_set() -> None:
    request = CaseRequest(
        experiment="quickstart",
        workload="wide-mlp",
        strategy="ps:staleness=2",
        settings={"strategies": "[single, 'ps:staleness=2']", "measure.repeats": "2"},
    )
    chosen = one_case(request)
    assert (str(chosen.case.strategy), chosen.spec.measure.repeats) == ("ps:staleness=2", 2)


def test_a_case_that_is_only_checked_takes_a_step() -> None:
    settings = {"measure.repeats": 5, "measure.exposed_comm": True}
    request = CaseRequest(experiment="quickstart", workload="wide-mlp", strategy="ps", settings=settings)
    spec = with_one_step(one_case(request).spec)
    measure = spec.measure
    assert (measure.repeats, measure.n_rounds, measure.steps, measure.window_s) == (1, 1, 1, 0.0)
    assert len(expand(spec)) == 1


def test_a_workload_of_a_file_need_not_be_one_of_the_experiments() -> None:
    own = "my_model.py:make:batch_size=32"
    chosen = one_case(CaseRequest(experiment="quickstart", workload=own, strategy="ps"))
    assert (str(chosen.case.workload), str(chosen.case.strategy)) == (own, "ps")
    assert [str(ref) for ref in chosen.spec.workloads] == [own]


def test_a_workload_of_a_file_keeps_the_parameters_of_the_experiment(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("{name: mine, workloads: [{name: 'my_model.py:make', batch_size: 32}], strategies: [ps]}")
    chosen = one_case(CaseRequest(experiment=str(path), workload="my_model.py:make"))
    assert chosen.case.workload.params == {"batch_size": 32}
