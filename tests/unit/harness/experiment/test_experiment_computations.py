"""Computation axes: cases of each precision, with XLA and without, compared among themselves."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from open_folders import made_record

from harness.cli.commands.run import PlannedTable, planned_table
from harness.cli.nightly.commit_runs import single_case
from harness.experiment.cases import Case, expand
from harness.experiment.load import resolve
from harness.experiment.references import StrategyRef
from harness.experiment.schedule import baseline_of, blocks_of
from harness.pipeline import RunOutcome
from harness.records.comparison import comparable_facts, comparison_key
from harness.records.conditions import Method
from harness.records.record import from_json, to_document

METHOD = Method(seed=0, steps=50, warmup_rule="auto", interleave=True, batch_rule="global")


def cases(*precisions: str, xla: object = False) -> tuple[Case, ...]:
    document = {"name": "x", "workloads": ["digits-mlp"], "strategies": ["single", "ps"]}
    precision = {"precision": list(precisions)} if precisions else {}
    return expand(resolve(document | {"measure": {**precision, "xla": xla}}))


def table_of(cases: tuple[Case, ...]) -> PlannedTable:
    return planned_table(RunOutcome(run_dir=None, cases=cases, n_repeats=1))


def test_each_precision_has_cases_of_its_own() -> None:
    plain, swept = cases(), cases("float32", "bfloat16")
    assert swept[:2] == plain
    assert [(case.strategy.name, case.computation.precision) for case in swept[2:]] == [
        ("single", "bfloat16"),
        ("ps", "bfloat16"),
    ]
    assert len({case.id for case in swept}) == 4
    assert swept[3].title == "digits-mlp ps 2x1 bfloat16"
    assert swept[1].title == "digits-mlp ps 2x1"


def test_they_are_measured_and_compared_among_themselves() -> None:
    swept = cases("float32", "bfloat16")

    def names(block: Sequence[Case]) -> set[tuple[str, str]]:
        return {(case.strategy.name, case.computation.precision) for case in block}

    assert [names(block) for block in blocks_of(swept)] == [
        {("single", "float32"), ("ps", "float32")},
        {("single", "bfloat16"), ("ps", "bfloat16")},
    ]
    assert baseline_of(swept[3], swept, StrategyRef(name="single")) is swept[2]


def test_both_axes_combine() -> None:
    swept = cases("float32", "bfloat16", xla=[False, True])
    assert [str(case.computation) for case in swept[::2]] == ["", "XLA", "bfloat16", "bfloat16 XLA"]
    assert swept[2:4] == cases(xla=True)
    assert len({case.id for case in swept}) == len(swept) == 8
    assert len(blocks_of(swept)) == 4
    assert table_of(swept).columns[-3:] == ("precision", "XLA", "repeats")


def of_device(device: str | list[str], **measure: object) -> tuple[Case, ...]:
    document = {"name": "x", "workloads": ["digits-mlp"], "strategies": ["single", "ps"]}
    return expand(resolve(document | {"cluster": {"device": device}, "measure": measure}))


def test_gpus_have_cases_with_tf32_and_without() -> None:
    usual, swept = of_device("gpu"), of_device("gpu", tf32=[True, False])
    assert [case.computation.tf32 for case in swept] == [True, True, False, False]
    assert swept[:2] == usual, "TF32 is TensorFlow's choice, and so the usual one"
    assert len({case.id for case in swept}) == len(swept)
    assert len(blocks_of(swept)) == 2
    assert (swept[1].title, swept[3].title) == ("digits-mlp ps 2x1", "digits-mlp ps 2x1 TF32 off")
    assert baseline_of(swept[3], swept, StrategyRef(name="single")) is swept[2]
    table = table_of(swept)
    assert table.columns[-2:] == ("TF32", "repeats")
    assert "TF32" not in table_of(usual).columns


def test_other_devices_have_the_same_cases_whatever_is_asked_of_tf32() -> None:
    for device in ("cpu", "tpu", "tpu-emulated"):
        assert of_device(device, tf32=False) == of_device(device, tf32=[True, False]) == of_device(device)
        assert {case.computation.tf32 for case in of_device(device)} == {None}
    mixed = of_device(["cpu", "gpu"], tf32=[True, False])
    assert [(case.shape.device, case.computation.tf32) for case in mixed[::2]] == [
        ("cpu", None),
        ("gpu", True),
        ("gpu", False),
    ]


@pytest.mark.parametrize(("device", "tf32", "is_noted"), [("cpu", False, True), ("cpu", True, False)])
def test_a_setting_that_changes_nothing_is_named(device: str, tf32: bool, is_noted: bool) -> None:
    document = {"name": "x", "workloads": ["digits-mlp"], "strategies": ["single"]}
    notes = resolve(document | {"cluster": {"device": device}, "measure": {"tf32": tf32}}).notes
    assert any(note.startswith("measure.tf32 changes nothing here") for note in notes) is is_noted


@pytest.mark.parametrize("device", ["cpu", "gpu"])
def test_an_experiment_of_one_case_keeps_its_tf32(device: str) -> None:
    document = {"name": "x", "workloads": ["digits-mlp"], "strategies": ["single", "ps"]}
    spec = resolve(document | {"cluster": {"device": device}, "measure": {"tf32": [True, False]}})
    for case in expand(spec):
        alone = expand(single_case(spec, case))
        assert case in alone
        assert {case.computation for case in alone} == {case.computation}


@pytest.mark.parametrize(("precision", "output"), [(None, False), ("float32", False), ("bfloat16", True)])
def test_a_dry_run_shows_what_is_not_usual(precision: str | None, output: bool) -> None:
    table = table_of(cases(*([precision] if precision else [])))
    assert ("precision" in table.columns) is output


def test_records_are_compared_with_those_of_their_precision() -> None:
    def key(**how: Any) -> str:
        return comparison_key(made_record(method=replace(METHOD, **how)))

    keys = [key(), key(precision="bfloat16"), key(precision="float16"), key(xla=True)]
    assert len({*keys, key(replicas_on_gpus=(2,)), key(replicas_on_gpus=(2, 1))}) == 6
    # A field of the key that came later would part records from before it from all others.
    assert "replicas_on_gpus" not in str(comparable_facts(made_record(method=METHOD)))


def test_records_without_tf32_are_not_compared_with_others() -> None:
    def key(tf32: bool | None) -> str:
        return comparison_key(made_record(method=replace(METHOD, tf32=tf32)))

    assert key(True) == key(None), "GPUs had it before records said so"
    assert key(False) != key(True)


def test_a_record_from_before_computes_as_written() -> None:
    record = made_record(schema=1, method=METHOD)
    document = to_document(record)
    assert isinstance(document["method"], dict)
    for name in ("precision", "xla", "tf32", "input", "replicas_on_gpus"):
        del document["method"][name]
    old = from_json(json.dumps(document))
    assert old.method is not None
    assert (old.method.precision, old.method.xla, old.method.input) == ("float32", False, "staged")
    assert old.method.tf32 is None
    assert comparison_key(old) == comparison_key(record)
