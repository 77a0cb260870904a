"""The trust light of a report: its level, and the reasons in one line."""

from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_run import DIED, NO_GPU, SINGLE, TOO_FAST, Case, write_run

from harness.records.outcome import Stability
from reports.compare import build
from reports.load import load
from reports.rows.report import LeftOut, Trust
from reports.trust import trust_of

PS = Case(workload="w", strategy="ps")


def light(
    folder: Path, *cases: Case, share: float | None = 0.01, left_out: tuple[LeftOut, ...] = ()
) -> Trust:
    run = load(write_run(folder, [Case(workload="w", **SINGLE), *cases]))
    records = [replace(record, stability=Stability(foreign_cpu=share)) for record in run.records]
    return trust_of(records, build([run]).comparisons, left_out)


def test_a_quiet_machine_without_failures_is_green(tmp_path: Path) -> None:
    assert light(tmp_path / "run", PS) == Trust(
        level="green",
        word="Good",
        reason="no failures, no damaged files; other programs used at most 1 % of the workers' cores",
    )


@pytest.mark.parametrize(
    ("share", "level", "reason"),
    [
        (0.3, "amber", "other programs used up to 30 % of the workers' cores in all repeats"),
        (None, "grey", "load of other programs not measured"),
    ],
)
def test_load_is_amber_and_grey_if_unknown(
    tmp_path: Path, share: float | None, level: str, reason: str
) -> None:
    trust = light(tmp_path / "run", PS, share=share)
    assert (trust.level, trust.reason) == (level, f"{reason}; no failures, no damaged files")


def test_shared_cores_are_amber(tmp_path: Path) -> None:
    shared = replace(PS, notes=("workers share cores: 4 cores wanted, 2 available",))
    assert light(tmp_path / "run", shared).reason.startswith("workers shared cores; ")


@pytest.mark.parametrize(
    ("status", "failure", "level", "words"),
    [
        ("failed", DIED, "red", "failed"),
        ("implausible", TOO_FAST, "red", "was implausible"),
        ("skipped", NO_GPU, "amber", "was skipped"),
    ],
)
def test_repeats_without_a_result_come_first_with_their_strategy(
    tmp_path: Path, status: str, failure: object, level: str, words: str
) -> None:
    trust = light(tmp_path / "run", replace(PS, problems={1: (status, failure)}))
    assert trust.level == level
    assert trust.reason.startswith(f"ps {words} in 1 of 3 repeats; ")


def test_many_failed_strategies_are_counted(tmp_path: Path) -> None:
    failed = [replace(PS, strategy=f"s{i}", problems={0: ("failed", DIED)}) for i in range(5)]
    assert light(tmp_path / "run", *failed).reason.partition("; ")[0].endswith(", 2 more failed")


def test_damaged_files_are_red(tmp_path: Path) -> None:
    damaged = LeftOut(where="results.jsonl", why="checksum", is_damage=True)
    trust = light(tmp_path / "run", PS, left_out=(damaged,))
    assert (trust.level, trust.word) == ("red", "Problems")
    assert trust.reason.startswith("1 damaged or missing file; ")
