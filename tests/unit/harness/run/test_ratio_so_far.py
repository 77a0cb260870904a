"""What a person is told of a case's ratio while the run goes on."""

from dataclasses import replace
from typing import Any

import pytest
from open_folders import made_record

from harness.experiment.cases import Case, expand
from harness.experiment.load import resolve
from harness.records.outcome import Rounds
from harness.records.record import Record
from harness.run.progress import ratio_so_far

SPEC = resolve(
    {
        "name": "x",
        "workloads": ["digits-mlp"],
        "strategies": ["single", "ps"],
        "compare": {"baseline": "single"},
    }
)
SINGLE, PS = expand(SPEC)


def timed(case: Case, step_s: float, *, repeat: int, **more: Any) -> Record:
    rounds = Rounds(block=f"b{repeat}", n_steps=5, n_lead=2, n_made=70, step_s=(step_s,) * 10)
    return replace(made_record(), case=case.id, repeat=repeat, batch_size=64, rounds=rounds, **more)


def repeats(steps_s: list[float]) -> list[Record]:
    """Of both, where the baseline's step is 2 s."""
    pairs = [(timed(SINGLE, 2.0, repeat=n), timed(PS, step_s, repeat=n)) for n, step_s in enumerate(steps_s)]
    return [record for pair in pairs for record in pair]


def told(records: list[Record], case: Case = PS) -> str:
    return str(ratio_so_far(case, [SINGLE, PS], SPEC, records))


def test_two_repeats_have_a_ratio_and_three_an_interval_too() -> None:
    assert told(repeats([4.0, 4.0])) == "0.5× single"
    assert told(repeats([4.0, 4.0, 4.0])) == "0.5× single (0.5 to 0.5)"


def test_the_interval_is_that_of_the_logarithms() -> None:
    found = ratio_so_far(PS, [SINGLE, PS], SPEC, repeats([4.0, 4.4, 3.6]))
    assert found is not None
    assert found.interval is not None
    low, high = found.interval
    assert found.value == pytest.approx((0.5 * 2 / 4.4 * 2 / 3.6) ** (1 / 3))
    assert low * high == pytest.approx(found.value**2)


def test_what_failed_counts_for_nothing() -> None:
    records = repeats([4.0, 4.0])
    assert told([*records, timed(PS, 1.0, repeat=2, status="failed")]) == "0.5× single"


@pytest.mark.parametrize(("case", "records"), [(SINGLE, repeats([4.0])), (PS, []), (PS, [repeats([4.0])[1]])])
def test_without_two_that_were_timed_in_turn_nothing_is_said(case: Case, records: list[Record]) -> None:
    assert told(records, case) == "None"


def test_a_repeat_counts_before_the_baseline_has_its_record_of_it() -> None:
    beside = {"baseline": SINGLE.id, "baseline_step_s": (2.0,) * 10, "baseline_first_worker": 1}
    first, *_ = records = repeats([4.0])
    assert first.rounds is not None
    later = timed(PS, 4.0, repeat=1)
    assert later.rounds is not None
    told_early = replace(later, rounds=replace(later.rounds, **beside))
    found = ratio_so_far(PS, [SINGLE, PS], SPEC, [*records, told_early])
    assert found is not None
    assert found.value == pytest.approx(0.5)
