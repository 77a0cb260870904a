"""What a report says of how steps compute: a comparison for each way, and what it means."""

import csv
import io
from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_run import SINGLE, Case, write_run

import reports
from harness.records.facts.costs import Preparation
from reports.compare import build
from reports.load import load
from reports.notes.measuring import preparation_notes

ALONE = Case(workload="w", p50_s=0.020, **SINGLE)
REDUCE = Case(workload="w", strategy="all-reduce", p50_s=0.010)


def test_each_precision_is_compared_by_itself(tmp_path: Path) -> None:
    narrow = [replace(case, precision="bfloat16", p50_s=case.p50_s / 2) for case in (ALONE, REDUCE)]
    report = build([load(write_run(tmp_path / "run", [*narrow, ALONE, REDUCE]))])
    assert [comparison.precision for comparison in report.comparisons] == ["float32", "bfloat16"]
    for comparison in report.comparisons:
        assert {row.strategy for row in comparison.rows} == {"single", "all-reduce"}
        assert [row.n for row in comparison.rows] == [3, 3]
    wide, mixed = report.comparisons
    assert mixed.shape == f"{wide.shape}, mixed bfloat16"
    told = [note for note in mixed.notes if note.startswith("Layers compute in bfloat16")]
    assert len(told) == 1
    assert not any("mixed policy" in note for note in wide.notes)


def test_what_xla_compiles_is_compared_by_itself(tmp_path: Path) -> None:
    compiled = [replace(case, xla=True) for case in (ALONE, REDUCE)]
    report = build([load(write_run(tmp_path / "run", [*compiled, ALONE, REDUCE]))])
    plain, with_xla = report.comparisons
    assert (plain.xla, with_xla.xla) == (False, True)
    assert with_xla.shape == f"{plain.shape}, XLA"
    assert [any(n.startswith("XLA compiles") for n in each.notes) for each in report.comparisons] == [
        False,
        True,
    ]


def test_steps_on_gpus_without_tf32_are_compared_by_themselves(tmp_path: Path) -> None:
    usual = [replace(case, device="gpu", tf32=True) for case in (ALONE, REDUCE)]
    without = [replace(case, tf32=False) for case in usual]
    run = write_run(tmp_path / "run", [*without, *usual])
    on, off = build([load(run)]).comparisons
    assert (on.tf32, off.tf32) == (True, False)
    assert off.shape == on.shape.replace("TF32", "TF32 off") != on.shape
    assert [any("may round to TF32" in note for note in each.notes) for each in (on, off)] == [True, False]
    rows = list(csv.DictReader(io.StringIO(reports.render([run], "csv"))))
    assert [row["tf32"] for row in rows] == ["True", "True", "False", "False"]


def test_reports_of_other_devices_say_nothing_of_tf32(tmp_path: Path) -> None:
    (comparison,) = build([load(write_run(tmp_path / "run", [ALONE, REDUCE]))]).comparisons
    assert comparison.tf32 is None
    assert "TF32" not in " ".join([comparison.shape, *comparison.notes])


def test_records_of_gpus_from_before_tf32_was_recorded_are_compared_with_the_usual(tmp_path: Path) -> None:
    old, new = ([replace(case, device="gpu", tf32=tf32) for case in (ALONE, REDUCE)] for tf32 in (None, True))
    runs = [load(write_run(tmp_path / name, cases)) for name, cases in (("old", old), ("new", new))]
    before, after = build(runs).comparisons
    assert (before.shape, before.tf32) == (after.shape, after.tf32)


def test_a_comparison_on_shared_gpus_says_so_in_every_medium(tmp_path: Path) -> None:
    shared = replace(REDUCE, device="gpu", replicas_on_gpus=(2, 1))
    run = write_run(tmp_path / "run", [replace(ALONE, device="gpu"), shared])
    (comparison,) = build([load(run)]).comparisons
    assert ", 3 replicas share 2 GPUs" in comparison.shape
    assert comparison.replicas_on_gpus == (2, 1)
    rows = list(csv.DictReader(io.StringIO(reports.render([run], "csv"))))
    assert {row["replicas_on_gpus"] for row in rows} == {"2+1"}


@pytest.mark.parametrize(
    ("of_rival", "is_noted"), [("kept", True), ("merged (linear)", False), ("merged", False), (None, False)]
)
def test_rows_that_some_sum_and_others_keep_are_named(
    tmp_path: Path, of_rival: str | None, is_noted: bool
) -> None:
    merged = [replace(case, sparse_duplicates="merged") for case in (ALONE, REDUCE)]
    rival = replace(REDUCE, strategy="tf-mirrored", sparse_duplicates=of_rival)
    (comparison,) = build([load(write_run(tmp_path / "run", [*merged, rival]))]).comparisons
    notes = [note for note in comparison.notes if note.startswith("Rows of sparse gradients")]
    assert [" and not in tf-mirrored: " in note for note in notes] == [True] * is_noted


def test_a_long_way_to_the_first_timed_step_is_told(tmp_path: Path) -> None:
    run = load(write_run(tmp_path / "run", [ALONE, REDUCE]))
    took = Preparation(
        capture_s=40.0, reference_s=85.0, limit_s=1800.0, start_s=9.0, check_s=None, warmup_s=4.0
    )
    records = [replace(record, preparation=took) for record in run.records]
    (note,) = preparation_notes({"single": records})
    stages = "capture 40.0 s, references 85.0 s, start 9.00 s, warm-up 4.00 s"
    assert note.startswith(f"First timed step after 138 s at most (single: {stages}); ")
    assert preparation_notes({"single": run.records}) == []
