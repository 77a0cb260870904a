from dataclasses import replace

import pytest
from open_folders import made_record

from harness.records.conditions import GpuFacts, Machine
from harness.records.costs import GpuUse
from harness.records.outcome import Stability
from harness.records.record import Record
from reports.recommendation.machine_notes import setting_notes, stability_notes, unknown_gpu_notes

QUIET = Stability(foreign_cpu=0.01, foreign_cpu_most=0.3, stolen_cpu=0.0, drift=0.02, grade="steady")


def cases(*stabilities: Stability, machine: Machine | None = None) -> dict[str, list[Record]]:
    return {"ps": [replace(made_record(), stability=stability, machine=machine) for stability in stabilities]}


def test_quiet_repeats_and_old_ones_are_not_talked_about() -> None:
    assert stability_notes(cases(QUIET, QUIET)) == []
    assert stability_notes({"ps": [replace(made_record(), stability=None)]}) == []


def test_other_programs_are_named_with_what_they_took() -> None:
    busy = replace(QUIET, foreign_cpu=0.124, foreign_cpu_most=0.51)
    notes = stability_notes(cases(QUIET, busy, replace(busy, foreign_cpu=0.4)))
    assert [note.text for note in notes] == [
        (
            "machine busy: other programs used 12–40 % of the workers' cores in 2 of 3 repeats of all "
            "strategies, 51 % at peak; rerun on an idle machine"
        ),
        "load affects examples/s; ratios, measured in turns, hardly",
    ]
    assert [note.severity for note in notes] == ["warning", "note"]


@pytest.mark.parametrize(
    ("n_quiet", "share", "severity"),
    [(3, 0.06, "note"), (1, 0.06, "note"), (0, 0.06, "warning"), (9, 0.2, "warning")],
)
def test_a_little_load_in_a_few_repeats_is_no_warning(n_quiet: int, share: float, severity: str) -> None:
    notes = stability_notes(cases(*[QUIET] * n_quiet, replace(QUIET, foreign_cpu=share)))
    assert notes[0].severity == severity


@pytest.mark.parametrize(
    ("stability", "message"),
    [
        (replace(QUIET, stolen_cpu=0.3), "machine busy: other virtual machines used 30 %"),
        (replace(QUIET, throttled_cpu=0.06), "a cgroup quota withheld 6 %"),
        (replace(QUIET, n_hot=2), "throttled by heat while ps ran"),
        (
            replace(QUIET, drift=-0.25),
            "step time drifted by up to 25 % in 1 of 2 repeats of all strategies (ps)",
        ),
        (
            replace(QUIET, foreign_gpu=0.4),
            "GPU busy: other programs used 40 % of a GPU's time in 1 of 2 repeats",
        ),
        (
            replace(QUIET, n_foreign_gpu=1),
            "GPU shared: 1 other program(s) on a worker's GPU in 1 of 2",
        ),
        (
            replace(QUIET, throttled_gpu=0.3, gpu_slowdowns=("power limit", "heat")),
            "GPU slowed: clocks were held down for 30 % of the time in 1 of 2 repeats of all strategies",
        ),
    ],
)
def test_whatever_disturbed_a_repeat_is_named(stability: Stability, message: str) -> None:
    assert any(message in note.text for note in stability_notes(cases(QUIET, stability)))


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
    assert note.text.startswith("GPU figures unknown in some repeats: share busy (short windows); ")
    assert note.text.endswith("; bytes over NVLink, use by other programs (Not Supported)")
    assert unknown_gpu_notes({"single": [made_record()]}) == []


def test_gpus_of_several_kinds_are_named() -> None:
    mixed = Machine(gpus=(GpuFacts(model="H100"), GpuFacts(model="H200")))
    (note,) = setting_notes(cases(QUIET, machine=mixed))
    assert note.text == "workers have different GPUs: H100, H200"
    assert setting_notes(cases(QUIET, machine=Machine(gpus=mixed.gpus and mixed.gpus[:1]))) == []
