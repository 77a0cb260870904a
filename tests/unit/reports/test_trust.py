"""The trust light of a report: its level, and the reasons in one line."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_run import DIED, NO_GPU, SINGLE, TOO_FAST, Case, write_run

from harness.records.outcome import Stability
from harness.records.record import Record
from reports.compare import build
from reports.load import Run, load
from reports.rows.report import LeftOut, Trust
from reports.trust import trust_of

PS = Case(workload="w", strategy="ps")
QUIET = Stability(foreign_cpu=0.01)


def light(
    folder: Path, *cases: Case, stability: Stability = QUIET, left_out: tuple[LeftOut, ...] = ()
) -> Trust:
    run = load(write_run(folder, [Case(workload="w", **SINGLE), *cases]))
    run = with_stability(run, lambda _: stability)
    return trust_of(run.records, build([run]).comparisons, left_out)


def with_stability(run: Run, stability: Callable[[Record], Stability]) -> Run:
    records = tuple(replace(record, stability=stability(record)) for record in run.records)
    return replace(run, stored=replace(run.stored, records=records))


def most(percent: int) -> str:
    return f"other programs used at most {percent} % of the workers' cores in a repeat"


def test_a_quiet_machine_without_failures_is_green(tmp_path: Path) -> None:
    assert light(tmp_path / "run", PS) == Trust(
        level="green",
        word="Good",
        reason=f"no failures, no damaged files; {most(1)}",
    )


@pytest.mark.parametrize(
    ("stability", "level", "reason"),
    [
        (Stability(foreign_cpu=0.3), "amber", f"machine busy; {most(30)}"),
        (
            replace(QUIET, throttled_cpu=0.3),
            "amber",
            "CPU limited",
        ),
        (
            replace(QUIET, stolen_cpu=0.3, n_foreign_gpu=1),
            "amber",
            f"machine busy, GPU shared; {most(1)}",
        ),
        (Stability(), "grey", "load of other programs not measured"),
    ],
)
def test_load_is_amber_and_grey_if_unknown(
    tmp_path: Path, stability: Stability, level: str, reason: str
) -> None:
    trust = light(tmp_path / "run", PS, stability=stability)
    assert (trust.level, trust.reason) == (level, reason)


def test_the_light_agrees_with_the_headlines_of_single_comparisons(tmp_path: Path) -> None:
    busy = replace(PS, workload="busy")
    cases = [Case(workload=name, **SINGLE) for name in ("w", "busy")]
    run = load(write_run(tmp_path / "run", [*cases, PS, busy]))
    shares = {"busy": 0.06, "w": 0.01}
    report = build([with_stability(run, lambda record: Stability(foreign_cpu=shares[record.workload]))])
    marked = [one.workload for one in report.comparisons if "(provisional, machine" in one.verdict.label]
    assert marked == ["busy"]
    assert report.trust.level == "amber"
    assert report.trust.reason.startswith("machine busy in 1 of 2 comparisons; ")


def test_shared_cores_are_amber(tmp_path: Path) -> None:
    shared = replace(PS, notes=("workers share cores: 4 cores wanted, 2 available",))
    assert light(tmp_path / "run", shared).reason == "cores shared"


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
    assert trust.reason == f"ps {words} in 1 of 3 repeats"


def test_many_failed_strategies_are_counted(tmp_path: Path) -> None:
    failed = [replace(PS, strategy=f"s{i}", problems={0: ("failed", DIED)}) for i in range(5)]
    assert light(tmp_path / "run", *failed).reason.partition("; ")[0].endswith(", 2 more failed")


def test_damaged_files_are_red(tmp_path: Path) -> None:
    damaged = LeftOut(where="results.jsonl", why="checksum", is_damage=True)
    trust = light(tmp_path / "run", PS, left_out=(damaged,))
    assert (trust.level, trust.word) == ("red", "Problems")
    assert trust.reason == "1 damaged or missing file"
