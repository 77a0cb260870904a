"""Records that run again because a file of the user has changed, and those that no new ones can join."""

from dataclasses import replace
from pathlib import Path

import pytest
from open_folders import made_record

from harness.errors import UsageError
from harness.experiment import chosen_strategy
from harness.experiment.cases import expand
from harness.experiment.load import resolve
from harness.records.conditions import Method, Provenance
from harness.records.outcome import Rounds
from harness.run.recorder import files_of
from harness.run.resume import changed_files, outdated_records, require_placements, require_timed_units


def rounds(*, baseline: str) -> Rounds:
    return Rounds(
        block="b",
        n_steps=1,
        n_lead=0,
        n_made=1,
        first_worker=0,
        step_s=(1.0,),
        baseline=baseline,
        baseline_step_s=(1.0,),
        baseline_first_worker=0,
    )


def test_repeats_of_a_changed_file_are_outdated_and_others_are_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    mine = tmp_path / "mine.py"
    mine.write_text("FACTOR = 1\n")
    spec = resolve({"name": "x", "workloads": ["mine.py:Model", "wide-mlp"], "strategies": ["single", "ps"]})
    cases = expand(spec)
    records = tuple(
        made_record(case.id, provenance=Provenance(files=files_of(case)), workload=case.workload_name)
        for case in cases
    )
    assert outdated_records(records, cases) == ()
    mine.write_text("FACTOR = 2\n")
    chosen_strategy._hash.cache_clear()  # as for the process of the next command
    assert {record.workload for record in outdated_records(records, cases)} == {"mine.py:Model"}
    # What a ratio refers to has changed with its baseline.
    (mine_id, *_), (other_id, *_) = (
        [case.id for case in cases if ("mine" in case.workload_name) is is_mine] for is_mine in (True, False)
    )
    paired = made_record(other_id, rounds=rounds(baseline=mine_id))
    assert outdated_records((*records, paired), cases)[-1] == paired
    assert changed_files(outdated_records(records, cases), cases) == ["mine.py:Model"]
    # Of records that do not say, and of cases that are none of the run's, nothing is known.
    unknown = [replace(records[0], provenance=None), replace(records[0], case="another")]
    assert outdated_records(unknown, cases) == ()


def test_repeats_on_gpus_join_only_records_that_say_where_batches_were() -> None:
    document = {"name": "x", "workloads": ["wide-mlp"], "strategies": ["ps", "tf-parameter-server"]}
    method = Method(seed=0, steps=1, warmup_rule="auto", interleave=True, batch_rule="global")
    for device, is_refused in (("gpu", True), ("cpu", False)):
        cases = expand(resolve({**document, "cluster": {"device": device}}))
        ps, coordinated = (next(c.id for c in cases if c.strategy.name == s) for s in document["strategies"])
        require_placements([made_record(coordinated, method=method)], cases)
        require_placements([made_record(ps, method=replace(method, input_placement="device"))], cases)
        require_placements([made_record(ps, method=method, status="failed")], cases)
        if is_refused:
            with pytest.raises(UsageError, match=f"older version for {ps}; name another folder"):
                require_placements([made_record(ps, method=method)], cases)
        else:
            require_placements([made_record(ps, method=method)], cases)


def test_repeats_join_only_records_that_are_timed_alike() -> None:
    cases = expand(
        resolve({"name": "x", "workloads": ["wide-mlp"], "strategies": ["all-reduce", "local-sgd"]})
    )
    every, few = (case.id for case in cases)
    method = Method(seed=0, steps=1, warmup_rule="auto", interleave=True, batch_rule="global")
    require_timed_units([made_record(every, method=method), made_record(few, status="failed")], cases)
    require_timed_units([made_record(few, method=replace(method, timed_unit="period"))], cases)
    with pytest.raises(UsageError, match=f"timed by period, got one of an older version for {few}; name"):
        require_timed_units([made_record(few, method=method)], cases)
