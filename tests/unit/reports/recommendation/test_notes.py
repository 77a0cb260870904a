"""Notes beside a comparison: computation, preparation, input, and the cost of measuring."""

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
from open_folders import made_record
from synthetic_run import SINGLE, Case, write_run

import reports
from harness.records.comparison import comparison_key
from harness.records.conditions import Method
from harness.records.costs import InputWait, ObserverEffect, Preparation
from harness.records.outcome import StepSeconds
from harness.records.record import Record, from_json, to_document, to_json
from reports.case_row import case_row
from reports.compare import build
from reports.load import load
from reports.marks import mark_words
from reports.recommendation.notes import input_notes, observer_notes, preparation_notes
from reports.rows.row import Row
from reports.shapes import ComparedShape

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
    notes = [note for note in mixed.notes if note.startswith("mixed precision: layers in bfloat16")]
    assert len(notes) == 1
    assert not any("mixed precision" in note for note in wide.notes)


def test_what_xla_compiles_is_compared_by_itself(tmp_path: Path) -> None:
    compiled = [replace(case, xla=True) for case in (ALONE, REDUCE)]
    report = build([load(write_run(tmp_path / "run", [*compiled, ALONE, REDUCE]))])
    plain, with_xla = report.comparisons
    assert (plain.xla, with_xla.xla) == (False, True)
    assert with_xla.shape == f"{plain.shape}, XLA"
    assert [
        any(n.startswith("XLA compiles") for n in comparison.notes) for comparison in report.comparisons
    ] == [
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
    assert [any("may round to TF32" in note for note in row.notes) for row in (on, off)] == [True, False]
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
    notes = [note for note in comparison.notes if note.startswith("sparse rows with equal ids")]
    assert [", not in tf-mirrored; " in note for note in notes] == [True] * is_noted


def test_a_long_way_to_the_first_timed_step_is_told(tmp_path: Path) -> None:
    run = load(write_run(tmp_path / "run", [ALONE, REDUCE]))
    took = Preparation(
        capture_s=40.0, reference_s=85.0, limit_s=1800.0, start_s=9.0, check_s=None, warmup_s=4.0
    )
    records = [replace(record, preparation=took) for record in run.records]
    (note,) = preparation_notes({"single": records})
    stages = "capture 40.0 s, references 85.0 s, start 9.00 s, warm-up 4.00 s"
    assert note.text.startswith(f"up to 138 s before the first timed step (single: {stages}); ")
    assert preparation_notes({"single": run.records}) == []


SHAPE = ComparedShape(
    workload="w",
    provider="local",
    device="cpu",
    workers=2,
    replicas=1,
    batch_size=8,
    link_mbit=0.0,
    precision="float32",
    xla=False,
)
METHOD = Method(seed=0, steps=50, warmup_rule="auto", interleave=True, batch_rule="global")
STEPS = StepSeconds(n=50, mean=1.0, p50=1.0, p90=1.0, p99=1.0)


def timed(share: float | None) -> Record:
    """A repeat whose steps wait for that share of their time; None for staged batches."""
    record = made_record(method=METHOD, step_s=STEPS, batch_size=8)
    if share is None:
        return record
    wait = InputWait(mean=share, share=share, mean_of_workers=(share, 0.0), bound=share >= 0.1)
    return replace(record, method=replace(METHOD, input="pipeline"), input_s=wait)


def row(name: str, share: float | None) -> Row:
    return case_row(name, [timed(share)], [timed(share)], SHAPE, None)


def test_a_case_that_waits_is_marked_and_its_share_is_told() -> None:
    rows = [row("ps", 0.25), row("single", 0.02)]
    assert [mark_words(row) for row in rows] == ["– not checked, input-bound", "– not checked"]
    how, bound = input_notes(rows, {"ps": [timed(0.25)], "single": [timed(0.02)]})
    assert "tf.data pipeline" in how.text
    assert bound.text.startswith("input-bound: share of step time waiting for input: ps 25 %; ")
    assert bound.strategies == ("ps",)


def test_without_long_waits_a_pipeline_is_told_and_staged_batches_are_not() -> None:
    assert len(input_notes([row("ps", 0.02)], {"ps": [timed(0.02)]})) == 1
    assert input_notes([row("ps", None)], {"ps": [timed(None)]}) == []
    assert row("ps", None).input_s is None


def test_memory_of_staged_batches_keeps_cases_apart() -> None:
    on_gpu, on_host = (
        replace(timed(None), method=replace(METHOD, input_placement=place)) for place in ("device", "host")
    )
    assert comparison_key(on_gpu) != comparison_key(on_host) != comparison_key(timed(None))


def test_a_record_keeps_its_wait_and_one_from_before_is_staged() -> None:
    assert from_json(to_json(timed(0.25))) == timed(0.25)
    document = to_document(replace(timed(None), schema=1))
    assert isinstance(document["method"], dict)
    del document["method"]["input"], document["input_s"]
    old = from_json(json.dumps(document))
    assert old.method is not None
    assert (old.method.input, old.input_s) == ("staged", None)


def observed(*ratios: float) -> Record:
    """A repeat with a pair of windows for each ratio of the step with instruments to that without."""
    effect = ObserverEffect(with_s=tuple(0.01 * ratio for ratio in ratios), without_s=(0.01,) * len(ratios))
    return replace(made_record(), observer=effect)


def test_the_share_is_told_with_its_interval_from_three_repeats_on() -> None:
    assert observer_notes({"ps": [made_record()]}) == []
    (one,) = observer_notes({"ps": [observed(1.02)]})
    assert one.text == "instrumentation changes the mean step: ps +2.0 %"
    (three,) = observer_notes({"ps": [observed(1.02)] * 3, "single": [observed(0.99)]})
    assert three.text.endswith(": ps +2.0 % (+2.0 to +2.0 %), single -1.0 %")


def test_a_window_that_a_stall_fell_on_is_left_out() -> None:
    (note,) = observer_notes({"ps": [observed(1.0, 1.0, 1.0, 1.0, 9.0)]})
    assert note.text.endswith(": ps +0 %")


@pytest.mark.parametrize("n_repeats", [1, 3])
def test_why_it_is_not_known_is_told_once(n_repeats: int) -> None:
    record = replace(made_record(), observer=ObserverEffect(why_none="no windows"))
    (note,) = observer_notes({"ps": [record] * n_repeats})
    assert note.text == "overhead of instrumentation unknown for ps: no windows"
