"""What a report says of what measuring takes."""

from dataclasses import replace

import pytest
from open_folders import made_record

from harness.records.facts.costs import ObserverEffect
from harness.records.record import Record
from reports.notes.measuring import observer_notes


def timed(*ratios: float) -> Record:
    """A repeat with a pair of windows for each ratio of the step with instruments to that without."""
    effect = ObserverEffect(with_s=tuple(0.01 * ratio for ratio in ratios), without_s=(0.01,) * len(ratios))
    return replace(made_record(), observer=effect)


def test_the_share_is_told_with_its_interval_from_three_repeats_on() -> None:
    assert observer_notes({"ps": [made_record()]}) == []
    assert observer_notes({"ps": [timed(1.02)]}) == ["Measuring changes the mean step of ps by +2.0 %."]
    three = observer_notes({"ps": [timed(1.02)] * 3, "single": [timed(0.99)]})
    assert three == ["Measuring changes the mean step of ps by +2.0 % (+2.0 to +2.0 %), of single by -1.0 %."]


def test_a_window_that_a_stall_fell_on_is_left_out() -> None:
    (note,) = observer_notes({"ps": [timed(1.0, 1.0, 1.0, 1.0, 9.0)]})
    assert note.endswith("by +0 %.")


@pytest.mark.parametrize("n_repeats", [1, 3])
def test_why_it_is_not_known_is_told_once(n_repeats: int) -> None:
    record = replace(made_record(), observer=ObserverEffect(why_none="no windows"))
    assert observer_notes({"ps": [record] * n_repeats}) == [
        "ps: what measuring takes is not known: no windows."
    ]
