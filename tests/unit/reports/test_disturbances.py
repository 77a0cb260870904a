"""What a report says of repeats that were disturbed, and of a machine whose clock changes."""

from dataclasses import replace

import pytest
from open_folders import made_record

from harness.records.facts.circumstances import Machine
from harness.records.facts.stability import Stability
from harness.records.record import Record
from reports.notes.measuring import setting_notes, stability_notes

QUIET = Stability(foreign_cpu=0.01, foreign_cpu_most=0.3, stolen_cpu=0.0, drift=0.02, grade="steady")


def cases(*found: Stability, machine: Machine | None = None) -> dict[str, list[Record]]:
    return {"ps": [replace(made_record(), stability=each, machine=machine) for each in found]}


def test_quiet_repeats_and_old_ones_are_not_talked_about() -> None:
    assert stability_notes(cases(QUIET, QUIET)) == []
    assert stability_notes({"ps": [replace(made_record(), stability=None)]}) == []


def test_other_programs_are_named_with_what_they_took() -> None:
    busy = replace(QUIET, foreign_cpu=0.124, foreign_cpu_most=0.51)
    notes = stability_notes(cases(QUIET, busy, replace(busy, foreign_cpu=0.4)))
    assert notes[0] == (
        "Other programs used 12 to 40 % of the workers' cores while 2 repeats were timed; in one window 51 %."
    )
    assert "examples/s" in notes[-1]


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (replace(QUIET, stolen_cpu=0.3), "Other virtual machines were given 30 %"),
        (replace(QUIET, throttled_cpu=0.06), "The limit of a control group withheld 6 %"),
        (replace(QUIET, n_hot=2), "for their heat while ps"),
        (replace(QUIET, drift=-0.25), "Steps of ps were up to 25 % longer or shorter"),
    ],
)
def test_whatever_disturbed_a_repeat_is_named(found: Stability, told: str) -> None:
    assert any(told in note for note in stability_notes(cases(QUIET, found)))


def test_a_clock_that_changes_is_warned_of_once() -> None:
    moving = Machine(governor="powersave", turbo=True, hyper_threads=True)
    assert len(setting_notes(cases(QUIET, QUIET, machine=moving))) == 3
    assert setting_notes(cases(QUIET, machine=Machine(governor="performance", turbo=False))) == []
    assert setting_notes(cases(QUIET, machine=None)) == []
