"""Which repeats of two cases make a ratio, and on whose cores these were."""

from dataclasses import replace
from typing import Any

import pytest
from open_folders import made_record

from harness.records.comparing.common_rounds import paired_ratios
from harness.records.facts.rounds import Rounds
from harness.records.record import Record


def timed(case: str, step_s: float, repeat: int, **more: Any) -> Record:
    rounds = Rounds(
        block=more.pop("block", f"b{repeat}"), n_steps=5, n_lead=2, n_made=70, step_s=(step_s,) * 4, **more
    )
    return replace(made_record(), case=case, repeat=repeat, batch_size=64, rounds=rounds)


def test_one_worker_on_each_of_two_in_turn_makes_strata_and_two_such_do_not() -> None:
    alone = [timed("single", 2.0 + repeat % 2, repeat, first_worker=repeat % 2) for repeat in range(4)]
    others = [timed("ps", 4.0, repeat) for repeat in range(4)]
    found = paired_ratios(others, alone)
    assert found.cores == ((0, 0), (0, 1), (0, 0), (0, 1))
    assert found.mean().error == 0.0
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
    found = paired_ratios(four, [first])
    assert len(found.logs) == 4
    assert found.cores == ((0, 0), (0, 1), (0, 0), (0, 1))
    without = replace(first, rounds=None)
    assert paired_ratios(four, [without]) == found
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
