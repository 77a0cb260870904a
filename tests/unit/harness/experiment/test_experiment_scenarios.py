"""Scenarios of faults in an experiment: their cases, their blocks, what is refused."""

from typing import Any

import pytest

from harness.errors import UsageError
from harness.experiment.cases import Case, expand
from harness.experiment.load import find, read, resolve
from harness.experiment.model import NO_FAULTS
from harness.experiment.schedule import baseline_of, blocks_of

FLIP = {"worker": 1, "kind": "sign-flip", "scale": 10.0}


def document(**changes: Any) -> dict[str, Any]:
    return {
        "name": "x",
        "workloads": ["wide-mlp"],
        "strategies": ["single", "none", "ps", "robust-ps:rule=median"],
        "cluster": {"workers": 3},
        **changes,
    }


def names(cases: tuple[Case, ...]) -> list[tuple[str, str]]:
    return [(case.strategy.name, case.scenario.name) for case in cases]


def test_each_case_is_run_in_every_scenario_and_what_sends_nothing_once() -> None:
    spec = resolve(document(faults={"clean": [], "flip": [FLIP]}))
    assert names(expand(spec)) == [
        ("single", ""),
        ("none", "clean"),
        ("ps", "clean"),
        ("robust-ps", "clean"),
        ("ps", "flip"),
        ("robust-ps", "flip"),
    ]


def test_a_list_is_one_scenario() -> None:
    cases = expand(resolve(document(faults=[FLIP])))
    assert names(cases)[2:] == [("ps", "faults"), ("robust-ps", "faults")]
    assert str(cases[2].scenario.faults[0]) == "sign-flip scale=10"


def test_without_faults_nothing_changes() -> None:
    bare, empty = resolve(document()), resolve(document(faults=[]))
    assert bare.spec_hash == empty.spec_hash
    assert bare.scenarios == (NO_FAULTS,)
    assert "faults" not in bare.to_document()


def test_a_written_experiment_is_the_same_experiment() -> None:
    spec = resolve(
        document(faults={"clean": [], "flip": [FLIP, {"worker": 2, "kind": "stale", "delay_steps": 3}]})
    )
    assert resolve(spec.to_document()) == spec


def test_scenarios_are_measured_apart_and_compared_within() -> None:
    spec = resolve(document(faults={"clean": [], "flip": [FLIP]}, compare={"baseline": "ps"}))
    cases = expand(spec)
    blocks = [{case.scenario.name for case in block} - {""} for block in blocks_of(cases)]
    assert {"clean"} in blocks
    assert {"flip"} in blocks
    assert {"clean", "flip"} not in blocks
    flipped = next(case for case in cases if names((case,)) == [("robust-ps", "flip")])
    baseline = baseline_of(flipped, cases, spec.baseline)
    assert baseline is not None
    assert names((baseline,)) == [("ps", "flip")]


def test_filters_choose_by_scenario() -> None:
    spec = resolve(
        document(
            strategies=["ps", "robust-ps:rule=median"],
            faults={"clean": [], "flip": [FLIP]},
            matrix={"include": [{"faults": "clean"}, {"faults": "flip", "strategy": "robust-ps"}]},
        )
    )
    assert names(expand(spec)) == [("ps", "clean"), ("robust-ps", "clean"), ("robust-ps", "flip")]
    assert resolve(spec.to_document()) == spec


@pytest.mark.parametrize(
    ("faults", "field", "message"),
    [
        (
            [{"worker": 3, "kind": "nan"}],
            "faults[0].worker",
            "must be one of 3 workers, counted from 0, got 3",
        ),
        ([{"worker": 0, "kind": "nam"}], "faults[0]", "kind must be a fault that there is, got 'nam'; did"),
        ([{"worker": -1, "kind": "nan"}], "faults[0].worker", "must be greater than or equal to 0, got -1"),
        ([{"worker": 0, "kind": "nan", "rate": 2.0}], "faults[0].rate", "must be less than or equal to 1"),
        (
            [{"worker": 0, "kind": "nan", "sacle": 2.0}],
            "faults[0].sacle",
            "unknown key, did you mean 'scale'",
        ),
        ({"a": [{"worker": 0}]}, "faults.a[0].kind", "must be given, got nothing"),
        ({}, "faults", "must have a scenario, got an empty mapping; drop it"),
        ("nan", "faults", "must be"),
    ],
)
def test_mistakes_are_named_by_their_path(faults: object, field: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        resolve(document(faults=faults))
    assert caught.value.field == field
    assert caught.value.message.startswith(message)


@pytest.mark.parametrize("name", ["byzantine", "byzantine-short"])
def test_shipped_experiments_can_be_run(name: str) -> None:
    cases = expand(resolve(read(find(name))))
    assert {case.scenario.name for case in cases} > {"clean"}
