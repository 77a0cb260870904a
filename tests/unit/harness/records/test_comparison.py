"""Repeats of two cases that make a ratio, and whose cores they used."""

from dataclasses import replace
from typing import Any

import pytest
from open_folders import made_record

from harness import errors
from harness.experiment.cases import expand
from harness.experiment.load import load_experiment
from harness.records.comparison import comparison_key, paired_ratios
from harness.records.conditions import Machine, Method
from harness.records.costs import Link
from harness.records.outcome import Rounds
from harness.records.record import Record


def timed(case: str, step_s: float, repeat: int, **more: Any) -> Record:
    rounds = Rounds(
        block=more.pop("block", f"b{repeat}"), n_steps=5, n_lead=2, n_made=70, step_s=(step_s,) * 4, **more
    )
    return replace(made_record(), case=case, repeat=repeat, batch_size=64, rounds=rounds)


def test_one_worker_on_each_of_two_in_turn_makes_strata_and_two_such_do_not() -> None:
    alone = [timed("single", 2.0 + repeat % 2, repeat, first_worker=repeat % 2) for repeat in range(4)]
    others = [timed("ps", 4.0, repeat) for repeat in range(4)]
    ratios = paired_ratios(others, alone)
    assert ratios.cores == ((0, 0), (0, 1), (0, 0), (0, 1))
    assert ratios.mean().error == 0.0
    twins = [replace(record, case="twin") for record in alone]
    assert paired_ratios(twins, alone).cores is None


def test_a_baseline_beside_another_block_was_where_that_block_had_it() -> None:
    own = [timed("single", 2.0, repeat, block=f"own{repeat}", first_worker=repeat % 2) for repeat in range(4)]
    four = [
        timed(
            "ps",
            4.0,
            repeat,
            block=f"four{repeat}",
            baseline="single",
            baseline_step_s=(2.0,) * 4,
            baseline_first_worker=repeat % 4,
        )
        for repeat in range(4)
    ]
    assert paired_ratios(four, own).cores == tuple((0, repeat) for repeat in range(4))
    assert paired_ratios(own, four).cores == tuple((repeat, 0) for repeat in range(4))


def test_where_the_baseline_has_no_record_of_a_repeat_its_place_is_known_too() -> None:
    four = [
        timed(
            "ps", 4.0, repeat, baseline="single", baseline_step_s=(2.0,) * 4, baseline_first_worker=repeat % 2
        )
        for repeat in range(4)
    ]
    first = timed("single", 2.0, 0)
    ratios = paired_ratios(four, [first])
    assert len(ratios.logs) == 4
    assert ratios.cores == ((0, 0), (0, 1), (0, 0), (0, 1))
    without = replace(first, rounds=None)
    assert paired_ratios(four, [without]) == ratios
    assert paired_ratios([without], four).cores == ((0, 0), (1, 0), (0, 0), (1, 0))


def test_two_that_met_in_the_baseline_of_two_blocks_are_where_it_was_for_each() -> None:
    def beside(case: str, first: int) -> list[Record]:
        return [
            timed(
                case,
                4.0,
                repeat,
                block=f"{case}{repeat}",
                baseline="single",
                baseline_step_s=(2.0,) * 4,
                baseline_first_worker=(first + repeat) % 2,
            )
            for repeat in range(4)
        ]

    assert paired_ratios(beside("ps", 0), beside("ring", 0)).cores is None
    assert paired_ratios(beside("ps", 0), beside("ring", 1)).cores == ((0, 1), (1, 0), (0, 1), (1, 0))


@pytest.mark.parametrize("records", [[], [timed("ps", 4.0, 7)]])
def test_without_a_repeat_in_common_there_is_no_ratio(records: list[Record]) -> None:
    assert paired_ratios(records, [timed("single", 2.0, 0)]).logs == ()


@pytest.mark.parametrize(
    ("experiment", "hashed", "n_cases", "first", "last"),
    [
        (
            "quickstart",
            "d9254b17283d265fb5104f5fcd7b5e993c8a128c46fc6de515afd60654b0bf5b",
            15,
            "digits-cnn-single-1x1-defd7341",
            "dlrm-tf-multi-worker-mirrored-2x1-a0e30011",
        ),
        (
            "rivals",
            "a4f1c442dc9446cf2f16e64d4604459b5fba5f478626acc23b6dcecb806b0c9a",
            180,
            "digits-cnn-single-1x1-cda0b9f0",
            "dlrm-tf-parameter-server-2x1-104f2542",
        ),
        (
            "link-sweep",
            "7834c522e22103d994de51b86eb54a6d52872a0e9559c80fa36c65e80a0d2e58",
            16,
            "wide-mlp-single-1x1-6506dc4e",
            "wide-mlp-all-reduce-2x1-9c4413da",
        ),
    ],
)
def test_experiments_and_cases(experiment: str, hashed: str, n_cases: int, first: str, last: str) -> None:
    spec = load_experiment(experiment)
    cases = expand(spec)
    assert spec.spec_hash == hashed
    assert (len(cases), cases[0].id, cases[-1].id) == (n_cases, first, last)


def test_comparison_key() -> None:
    record = made_record(
        workload_params={"units": 16},
        strategy_params={"staleness": 2},
        batch_size=64,
        link=Link(requested_mbit=100.0),
        machine=Machine(cpu_model="cpu", n_cores=2, memory_bytes=1, kernel="6", architecture="x86_64"),
        method=Method(
            seed=1,
            steps=50,
            warmup_rule="auto",
            interleave=True,
            batch_rule="global",
            cores_per_worker=1,
            memory_per_worker_bytes=1,
            pinned=True,
        ),
    )
    assert comparison_key(record) == "1cc6175f67419755"
    assert record.method is not None
    of_pipeline = replace(record, method=replace(record.method, input="pipeline"))
    assert comparison_key(of_pipeline) != comparison_key(record)


def test_exit_statuses() -> None:
    assert (errors.EXIT_OK, errors.EXIT_CASE, errors.EXIT_USAGE, errors.EXIT_MISSING) == (0, 1, 2, 3)
    assert (errors.EXIT_REGRESSION, errors.EXIT_INTERRUPTED) == (4, 130)
