from dataclasses import replace

import pytest
from open_folders import made_record

from harness.records.circumstances import GpuFacts, Machine
from harness.records.costs import GpuUse
from harness.records.outcome import Stability
from harness.records.record import Record
from reports.recommendation.machine_notes import setting_notes, stability_notes, unknown_gpu_notes

QUIET = Stability(foreign_cpu=0.01, foreign_cpu_most=0.3, stolen_cpu=0.0, drift=0.02, grade="steady")


def cases(*found: Stability, machine: Machine | None = None) -> dict[str, list[Record]]:
    return {"ps": [replace(made_record(), stability=each, machine=machine) for each in found]}


def test_quiet_repeats_and_old_ones_are_not_talked_about() -> None:
    assert stability_notes(cases(QUIET, QUIET)) == []
    assert stability_notes({"ps": [replace(made_record(), stability=None)]}) == []


def test_other_programs_are_named_with_what_they_took() -> None:
    busy = replace(QUIET, foreign_cpu=0.124, foreign_cpu_most=0.51)
    notes = stability_notes(cases(QUIET, busy, replace(busy, foreign_cpu=0.4)))
    assert notes[:2] == [
        "Other programs used 12 to 40 % of the workers' cores while 2 repeats were timed.",
        "In one window other programs used 51 % of the workers' cores.",
    ]
    assert "examples/s" in notes[-1]


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (replace(QUIET, stolen_cpu=0.3), "Other virtual machines were given 30 %"),
        (replace(QUIET, throttled_cpu=0.06), "The limit of a control group withheld 6 %"),
        (replace(QUIET, n_hot=2), "for their heat while ps"),
        (replace(QUIET, drift=-0.25), "Steps of ps were up to 25 % longer or shorter"),
        (
            replace(QUIET, foreign_gpu=0.4),
            "Other programs used 40 % of a GPU's time while 1 repeat was timed.",
        ),
        (replace(QUIET, n_foreign_gpu=1), "Up to 1 other program shared a GPU with the workers, in 1 of 2"),
        (
            replace(QUIET, throttled_gpu=0.3, gpu_slowdowns=("power limit", "heat")),
            "Clocks were held down for 30 % of a GPU's time while 1 repeat was timed: power limit, heat.",
        ),
    ],
)
def test_whatever_disturbed_a_repeat_is_named(found: Stability, told: str) -> None:
    assert any(told in note for note in stability_notes(cases(QUIET, found)))


def test_a_clock_that_changes_is_warned_of_once() -> None:
    moving = Machine(governor="powersave", turbo=True, hyper_threads=True)
    assert len(setting_notes(cases(QUIET, QUIET, machine=moving))) == 3
    assert setting_notes(cases(QUIET, machine=Machine(governor="performance", turbo=False))) == []
    assert setting_notes(cases(QUIET, machine=None)) == []


def test_figures_of_gpus_that_are_not_known_are_named_with_their_reasons() -> None:
    lacks = replace(
        made_record(),
        gpus=GpuUse(n_gpus=1, why_no={"busy": "short windows", "link_bytes_per_step": "Not Supported"}),
        stability=replace(QUIET, why_no_gpu={"foreign_gpu": "Not Supported"}),
    )
    (note,) = unknown_gpu_notes({"ps": [lacks, lacks], "single": [made_record()]})
    assert note.startswith("Not known of GPUs in all repeats: share busy (short windows); ")
    assert note.endswith("; bytes over NVLink, use by other programs (Not Supported).")
    assert unknown_gpu_notes({"single": [made_record()]}) == []


def test_gpus_of_several_kinds_are_named() -> None:
    mixed = Machine(gpus=(GpuFacts(model="H100"), GpuFacts(model="H200")))
    assert setting_notes(cases(QUIET, machine=mixed)) == ["Workers have GPUs of several kinds: H100, H200."]
    assert setting_notes(cases(QUIET, machine=Machine(gpus=mixed.gpus and mixed.gpus[:1]))) == []
