"""Rows, ranks and verdicts from stored records."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic_run import DIED, NO_GPU, NONE, SINGLE, TOO_FAST, Case, write_run

import reports
from harness.records.conditions import GpuFacts, Machine
from harness.records.costs import GpuUse
from harness.records.outcome import Equivalence, StepSeconds
from harness.records.record import Record
from reports.case_row import is_usable, rates_of, time_split_of
from reports.compare import baseline_of, build
from reports.load import MAX_SHOWN_REPEATS, Run, load, read_steps
from reports.marks import mark_of
from reports.origins import origin_of
from reports.quantities import plain, seconds, times
from reports.recommendation.notes import capture_notes, record_notes, separability_notes
from reports.rows.parts import StepSeries
from reports.rows.repeat import timed_span
from reports.rows.report import Comparison, LeftOut, Report
from reports.rows.row import Row
from reports.shapes import shapes_of
from reports.tables.figures import byte_table, check_table, cost_table, trace_table

Compare = Callable[..., Comparison]

REDUCE = Case(workload="w", strategy="all-reduce", p50_s=0.010)
PS = Case(workload="w", strategy="ps", p50_s=0.016)
ALONE = Case(workload="w", p50_s=0.020, **SINGLE)
CONTROL = Case(workload="w", p50_s=0.005, **NONE)


def row(comparison: Comparison, strategy: str) -> Row:
    return next(row for row in comparison.rows if row.strategy == strategy)


def change(case: Case, **fields: object) -> Case:
    return dataclasses.replace(case, **fields)  # type: ignore[arg-type]


def test_a_clear_leader_is_named_with_ratio_interval_and_bytes(compare: Compare) -> None:
    comparison = compare([ALONE, CONTROL, PS, REDUCE])
    assert [r.strategy for r in comparison.rows] == ["all-reduce", "ps", "single", "none"]
    assert [r.rank for r in comparison.rows] == [1, 2, 3, None]
    assert comparison.verdict.kind == "clear"
    assert comparison.verdict.leaders == ("all-reduce",)
    # The next is the alternative; equal bytes are not mentioned.
    assert re.fullmatch(
        r"WINNER: all-reduce, [12]\.\d\d× single \(.*\), 1\.\d\d× the next, ps \(CI .*, n = 3\)",
        comparison.verdict.headline,
    )
    ratio = row(comparison, "all-reduce").ratio
    assert ratio is not None
    assert ratio.interval is not None
    assert ratio.interval.contains(2.0)


def test_the_baseline_once_more_is_told_of_and_is_no_candidate(compare: Compare) -> None:
    twin = change(ALONE, is_twin=True, params={"aa": True}, p50_s=0.001)
    comparison = compare([twin, ALONE, REDUCE])
    assert comparison.baseline == "single"
    assert comparison.verdict.leaders == ("all-reduce",)
    assert (row(comparison, "single:aa=true").rank, row(comparison, "single:aa=true").mark.kind) == (
        None,
        "twin",
    )
    text = " ".join(comparison.notes)
    assert "A/A test failed: single:aa=true is " in text
    assert not any("not ranked" in detail for detail in comparison.verdict.details)


def test_two_names_of_one_thing_are_not_told_apart(compare: Compare) -> None:
    comparison = compare([change(ALONE, is_twin=True, params={"aa": True}), ALONE, REDUCE])
    text = " ".join(comparison.notes)
    assert "A/A test: single:aa=true is " in text


def test_rates_come_from_the_median_step_of_each_repeat(compare: Compare) -> None:
    compared = row(compare([change(REDUCE, noise=0.0, stall_s=3.0), ALONE]), "all-reduce")
    assert compared.rate is not None
    assert compared.window_rate is not None
    assert compared.rate.value == pytest.approx(64 / 0.010, rel=1e-6)
    # A stall hits the wall time of the window and not the median; both are shown.
    assert compared.window_rate.value < 0.2 * compared.rate.value


def test_what_records_say_is_said_with_names_unless_all_say_it(compare: Compare) -> None:
    shared, own = "workers share cores", "one variable stays whole"
    comparison = compare([change(ALONE, notes=(shared,)), change(REDUCE, notes=(shared, own))])
    assert [note for note in comparison.notes if shared[1:] in note or own in note] == [
        f"{shared}; use fewer workers or a machine with more cores",
        f"all-reduce: {own}",
    ]
    assert row(comparison, "all-reduce").notes == (shared, own)


def test_warnings_come_before_all_notes_and_are_part_of_the_row(compare: Compare) -> None:
    why = "nothing is partitioned; choose all-reduce"
    comparison = compare(
        [change(ALONE, notes=("shared",)), change(REDUCE, warnings=(why,), notes=("shared", "own"))]
    )
    assert comparison.notes[0] == f"all-reduce: {why}"
    assert [note.text for note in comparison.warnings] == [comparison.notes[0]]
    assert [note for note in comparison.notes if why in note] == [comparison.notes[0]]
    assert row(comparison, "all-reduce").notes == (why, "shared", "own")


def test_what_only_some_repeats_say_is_counted(tmp_path: Path) -> None:
    slow, *rest = load(write_run(tmp_path / "run", [PS])).records
    slow = dataclasses.replace(slow, notes=("warm-up did not settle",))
    (note,) = record_notes({"ps": [slow, *rest]})
    assert note.text == "ps: warm-up did not settle (1 of 3 repeats); raise measure.warmup_steps"
    assert (note.kind, note.strategies) == ("warmup-unsettled", ("ps",))


def test_the_gravest_warnings_come_first_and_concern_different_subjects(compare: Compare) -> None:
    shared = "workers share cores: 4 cores wanted, 2 available"
    retransmits = "more than 1% TCP retransmits between workers"
    notes, advice = (shared, retransmits), ("choose all-reduce",)
    comparison = compare([change(ALONE, notes=notes), change(PS, notes=notes, warnings=advice)])
    assert [note.kind for note in comparison.warnings] == ["cores-shared", "advice", "retransmits"]
    assert comparison.notes[: len(comparison.warnings)] == tuple(note.text for note in comparison.warnings)


def test_a_capture_that_is_not_its_author_s_step_is_warned_of_once(tmp_path: Path) -> None:
    records = load(write_run(tmp_path / "run", [PS])).records

    def checked(captured: bool | None) -> list[Record]:
        check = Equivalence(checked=True, captured=captured, capture="w is off")
        return [dataclasses.replace(r, equivalence=check) for r in records]

    assert capture_notes({"ps": checked(True), "single": records}) == []
    (wrong,) = capture_notes({"ps": checked(False), "none": checked(False)})
    assert (wrong.severity, wrong.text) == ("warning", "captured step differs: w is off")
    (unknown,) = capture_notes({"ps": checked(None)})
    assert (unknown.severity, unknown.text) == ("note", "captured step: w is off")


def test_what_trains_on_something_else_is_warned_of(tmp_path: Path) -> None:
    message = "strategies train on the mean over 2 shards"
    records = load(write_run(tmp_path / "run", [PS])).records

    def checked(*, separable: bool | None, text: str, **changes: Any) -> list[Record]:
        check = Equivalence(checked=True, equivalent=True, separable=separable, separability=text)
        return [dataclasses.replace(r, equivalence=check, **changes) for r in records]

    assert separability_notes({"single": records, "ps": checked(separable=True, text="it is")}) == []
    coupled = checked(separable=False, text=message)
    control = checked(separable=False, text=message, control=True)
    unknown = checked(separable=None, text="it is not known")
    notes = separability_notes({"ps": coupled, "all-reduce": coupled, "none": control, "parallax": unknown})
    assert [(note.severity, note.text) for note in notes] == [
        ("warning", f"NOT SEPARABLE: ps, all-reduce: {message}"),
        ("note", "parallax: it is not known"),
    ]


def test_a_baseline_ahead_without_interval_names_the_next(compare: Compare) -> None:
    comparison = compare([change(ALONE, p50_s=0.004), REDUCE], n_repeats=1)
    assert comparison.verdict.kind == "no-interval"
    assert comparison.verdict.claim.startswith("single leads, 2.50× the next, all-reduce (no CI, n = 1); ")


def test_a_stall_is_noted(compare: Compare) -> None:
    comparison = compare([change(case, stall_s=100 * case.p50_s, noise=0.2) for case in (REDUCE, ALONE)])
    (slow,) = [note for note in comparison.note_values if "slow steps: " in note.text]
    assert (slow.kind, slow.severity) == ("slow-steps", "note")
    assert "(provisional" not in comparison.verdict.label


@pytest.mark.parametrize("slow", [REDUCE, ALONE])
def test_a_stall_that_changes_the_ratio_of_the_headline_is_a_warning(compare: Compare, slow: Case) -> None:
    comparison = compare([change(case, stall_s=3.0 * (case is slow), noise=0.0) for case in (REDUCE, ALONE)])
    rates = {row.strategy: row.window_rate.value for row in comparison.rows if row.window_rate}
    by_windows = times(rates["all-reduce"] / rates["single"])
    assert f"; over whole windows all-reduce is {by_windows} single; rerun" in comparison.warnings[0].text
    assert comparison.verdict.label == "WINNER (provisional, slow steps)"


def test_the_control_never_wins_and_says_why(compare: Compare) -> None:
    comparison = compare([ALONE, CONTROL, REDUCE])
    assert row(comparison, "none").rank is None
    assert row(comparison, "none").mark.kind == "control"
    assert "none (no communication)" in " ".join(comparison.verdict.details)


@pytest.mark.parametrize(
    ("fields", "kind", "words"),
    [
        ({"equivalent": False}, "not-equivalent", "not equivalent"),
        ({"equivalent": None}, "not-checked", "not checked"),
        ({"equivalent": None, "class_": "statistical"}, "statistical", "compared by loss only"),
    ],
)
def test_unproven_strategies_cannot_win(
    compare: Compare, fields: dict[str, object], kind: str, words: str
) -> None:
    comparison = compare([ALONE, PS, change(REDUCE, **fields)])
    assert row(comparison, "all-reduce").mark.kind == kind
    assert row(comparison, "all-reduce").rank is None
    assert comparison.verdict.leaders == ("ps",)
    assert words in " ".join(comparison.verdict.details)


def checked_records(tmp_path: Path, check: Equivalence) -> list[Record]:
    records = load(write_run(tmp_path / "run", [REDUCE])).records
    return [dataclasses.replace(record, equivalence=check) for record in records]


def test_what_cannot_be_judged_is_not_equivalent_by_default(tmp_path: Path) -> None:
    hidden = Equivalence(checked=True, reason="only 3 % can be judged", undecidable=("a", "b", "c", "d"))
    mark = mark_of(checked_records(tmp_path, hidden))
    assert mark.kind == "undecidable"
    assert not mark.proven
    assert mark.explanation.endswith("only 3 % can be judged")


@pytest.mark.parametrize(
    ("within", "kind", "words"),
    [
        (True, "within-bound", "within the compressor's bound"),
        (False, "beyond-bound", "beyond the compressor's bound: step 2 is off"),
        (None, "undecidable", "rounding hides the compressor's loss: step 2 is off"),
    ],
)
def test_a_compressed_strategy_may_win_within_its_bound(
    tmp_path: Path, within: bool | None, kind: str, words: str
) -> None:
    check = Equivalence(checked=True, within_bound=within, reason="step 2 is off")
    records = [dataclasses.replace(r, strategy_class="bounded") for r in checked_records(tmp_path, check)]
    mark = mark_of(records)
    assert (mark.kind, mark.proven) == (kind, within is True)
    assert words in mark.explanation
    unchecked = [dataclasses.replace(r, equivalence=Equivalence(checked=False)) for r in records]
    assert mark_of(unchecked).kind == "not-checked"
    failed = Equivalence(checked=False, reason="the check did not end")
    explanation = mark_of([dataclasses.replace(r, equivalence=failed) for r in records]).explanation
    assert explanation.endswith("not checked: the check did not end")


def test_variables_that_rounding_hides_are_named_beside_a_passed_check(tmp_path: Path) -> None:
    passed = Equivalence(
        checked=True, equivalent=True, max_update_error=1e-7, tolerance=1e-5, undecidable=("a", "b", "c", "d")
    )
    mark = mark_of(checked_records(tmp_path, passed))
    assert mark.kind == "equivalent"
    assert "hides 4 more: a, b, c, …" in mark.explanation


def test_a_control_that_passes_the_check_makes_the_check_suspect(compare: Compare) -> None:
    comparison = compare([ALONE, REDUCE, change(CONTROL, equivalent=True)])
    assert row(comparison, "none").rank is None
    assert any("blind" in note for note in comparison.notes)


def test_overlapping_strategies_rank_together(compare: Compare) -> None:
    comparison = compare([ALONE, change(REDUCE, noise=0.06), change(PS, p50_s=0.0101, noise=0.06)])
    assert comparison.verdict.kind == "together"
    assert set(comparison.verdict.leaders) == {"all-reduce", "ps"}
    assert re.match("NO CLEAR WINNER: .* and .* are tied: ", comparison.verdict.headline)
    assert row(comparison, "all-reduce").rank == row(comparison, "ps").rank == 1
    assert row(comparison, "single").rank == 3


@pytest.mark.parametrize("n", [1, 2])
def test_too_few_repeats_name_no_winner(compare: Compare, n: int) -> None:
    comparison = compare([ALONE, REDUCE, PS], n_repeats=n)
    assert comparison.verdict.kind == "no-interval"
    assert comparison.verdict.headline.startswith("NOT ENOUGH REPEATS: all-reduce leads, ")
    assert f"(no CI, n = {n})" in comparison.verdict.headline
    assert all(r.rank is None for r in comparison.rows)


def test_a_baseline_that_wins_is_said_to(compare: Compare) -> None:
    comparison = compare([change(ALONE, p50_s=0.004), REDUCE, PS])
    assert comparison.verdict.leaders == ("single",)
    assert re.match(r"WINNER: single, 2\.\d+× the next, all-reduce \(CI ", comparison.verdict.headline)
    assert row(comparison, "single").ratio is None


def test_nothing_proven_means_no_winner(compare: Compare) -> None:
    comparison = compare([CONTROL, change(REDUCE, equivalent=False)], baseline="none")
    assert comparison.verdict.kind == "none"
    assert comparison.verdict.leaders == ()


def test_one_candidate_is_no_comparison(compare: Compare) -> None:
    comparison = compare([CONTROL, REDUCE])
    assert comparison.verdict.kind == "none"
    assert comparison.verdict.headline.startswith("NO RESULT: only all-reduce ")


def test_an_absent_baseline_falls_back_with_a_note(compare: Compare) -> None:
    comparison = compare([CONTROL, REDUCE, PS])
    assert comparison.baseline in ("all-reduce", "ps")
    assert any(note.startswith("baseline single has no result") for note in comparison.notes)


@pytest.mark.parametrize("knobs", ["", ":n=2"])
def test_a_baseline_of_a_users_own_is_found_by_its_file(compare: Compare, knobs: str) -> None:
    own = change(REDUCE, strategy="mine", files=("my_strategy.py:Mine",))
    cases = [own, change(own, params={"n": 2}), PS]
    assert compare(cases, baseline=f"my_strategy.py:Mine{knobs}").baseline == f"mine{knobs}"


def test_a_failed_baseline_falls_back_too(compare: Compare) -> None:
    comparison = compare([change(ALONE, problems=dict.fromkeys(range(3), ("failed", DIED))), REDUCE, PS])
    assert comparison.baseline in ("all-reduce", "ps")
    assert row(comparison, "single").status == "failed"


def test_failures_lower_n_and_are_listed(compare: Compare) -> None:
    comparison = compare([ALONE, REDUCE, change(PS, problems={1: ("failed", DIED)})])
    assert (row(comparison, "ps").n, row(comparison, "ps").n_repeats, row(comparison, "ps").status) == (
        2,
        3,
        "ok",
    )
    assert row(comparison, "ps").rank is None
    (problem,) = row(comparison, "ps").problems
    assert (problem.repeats, problem.type, problem.stage) == ((1,), "worker-died", "run")
    assert "signal 9" in problem.message
    assert any("ps: 2 of 3 repeats have a result" in note for note in comparison.notes)


def test_one_implausible_repeat_taints_the_case(compare: Compare) -> None:
    comparison = compare([ALONE, PS, change(REDUCE, p50_s=0.001, problems={2: ("implausible", TOO_FAST)})])
    assert row(comparison, "all-reduce").status == "implausible"
    assert comparison.verdict.leaders == ("ps",)


def test_skipped_repeats_are_one_problem(compare: Compare) -> None:
    comparison = compare([ALONE, PS, change(REDUCE, problems=dict.fromkeys(range(3), ("skipped", NO_GPU)))])
    assert row(comparison, "all-reduce").status == "skipped"
    assert [p.repeats for p in row(comparison, "all-reduce").problems] == [(0, 1, 2)]


def test_a_case_that_failed_before_its_batch_was_known_keeps_its_place(compare: Compare) -> None:
    early = change(REDUCE, batch_size=None, problems=dict.fromkeys(range(3), ("failed", DIED)))
    comparison = compare([ALONE, PS, early])
    assert {r.strategy: r.status for r in comparison.rows} == {
        "ps": "ok",
        "single": "ok",
        "all-reduce": "failed",
    }


def test_an_ok_record_without_a_figure_is_a_problem(compare: Compare) -> None:
    comparison = compare([ALONE, PS, change(REDUCE, batch_size=None)])
    (problem,) = row(comparison, "all-reduce").problems
    assert (row(comparison, "all-reduce").status, problem.type) == ("failed", "no-figure")


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"overhead": 1.2}, "1.20\N{MULTIPLICATION SIGN} the predicted payload bytes"),
        ({"overhead": 0.9}, "TCP bytes are below predicted payload bytes"),
        ({"payload": 0.0, "overhead": 1.0}, None),
        ({"overhead": 1.05}, None),
        ({"payload": 1_000.0, "overhead": 3.0}, None),
    ],
)
def test_bytes_out_of_order_are_noted(compare: Compare, fields: dict[str, object], words: str | None) -> None:
    notes = [note for note in compare([ALONE, change(REDUCE, **fields)]).notes if "bytes" in note]
    assert [words in note for note in notes] == ([] if words is None else [True])


def test_what_messages_cost_beside_a_small_payload_raises_no_alarm(compare: Compare) -> None:
    comparison = compare([ALONE, change(REDUCE, payload=1_000.0, overhead=3.0)])
    assert [note for note in comparison.notes if "bytes" in note] == []


def test_a_bound_is_called_one_and_raises_no_alarm(compare: Compare) -> None:
    sparse = change(REDUCE, payload_is_bound=True, overhead=0.6)
    comparison = compare([ALONE, sparse])
    assert [note for note in comparison.notes if "bytes" in note] == []
    assert any("is an upper bound" in note for note in comparison.notes)


def test_more_than_a_bound_raises_one(compare: Compare) -> None:
    comparison = compare([ALONE, change(REDUCE, payload=1e6, payload_is_bound=True, overhead=3.0)])
    assert any("TCP bytes are 3.00" in note and "expected within 10 %" in note for note in comparison.notes)


def test_missing_interface_bytes_stay_missing(compare: Compare) -> None:
    assert row(compare([ALONE, change(REDUCE, interface=False)]), "all-reduce").interface_bytes is None


def test_single_joins_every_shape_of_its_workload(tmp_path: Path) -> None:
    cases = [ALONE, *(change(case, workers=n) for case in (REDUCE, PS) for n in (2, 4))]
    comparison = build([load(write_run(tmp_path / "run", cases))])
    assert [c.workers for c in comparison.comparisons] == [2, 4]
    assert all(c.baseline == "single" for c in comparison.comparisons)


def test_another_batch_of_the_baseline_is_noted(compare: Compare) -> None:
    comparison = compare([change(ALONE, batch_size=32), REDUCE, PS])
    assert any("batch of single is 32, of the others 64" in note for note in comparison.notes)


def test_of_cases_that_were_never_planned_no_batch_is_told(compare: Compare) -> None:
    skipped = change(PS, batch_size=None, problems=dict.fromkeys(range(3), ("skipped", NO_GPU)))
    comparison = compare([ALONE, skipped])
    assert {r.strategy: r.status for r in comparison.rows} == {"single": "ok", "ps": "skipped"}
    assert not [note for note in comparison.notes if "batch of" in note]


def test_parameters_make_another_strategy(compare: Compare) -> None:
    comparison = compare([ALONE, PS, change(PS, params={"sync": True, "staleness": 2})])
    assert {r.strategy for r in comparison.rows} == {"single", "ps", "ps:staleness=2,sync=true"}


def test_workloads_keep_the_order_of_the_experiment(tmp_path: Path) -> None:
    cases = [change(case, workload=name) for name in ("zebra", "ant") for case in (ALONE, REDUCE)]
    comparison = build([load(write_run(tmp_path / "run", cases))])
    assert [c.workload for c in comparison.comparisons] == ["zebra", "ant"]


def test_runs_are_not_mixed(tmp_path: Path) -> None:
    runs = [load(write_run(tmp_path / name, [ALONE, REDUCE], seed=seed)) for seed, name in enumerate("ab")]
    comparison = build(runs)
    assert len(comparison.comparisons) == 2
    assert all(r.n == 3 for c in comparison.comparisons for r in c.rows)


def test_of_many_repeats_a_few_are_drawn_evenly_and_the_page_says_so(tmp_path: Path) -> None:
    n_repeats = 2 * MAX_SHOWN_REPEATS + 1
    path = write_run(tmp_path / "run", [ALONE, REDUCE], n_repeats=n_repeats)
    read: list[tuple[str, int]] = []

    def reader(run: Run, record: Record, /, *, most: int = 400) -> StepSeries | LeftOut:
        read.append((record.strategy, record.repeat))
        return read_steps(run, record, most=most)

    report = build([load(path)], read_steps=reader)
    drawn = [steps.repeat for steps in row(report.comparisons[0], "all-reduce").steps]
    assert drawn == list(range(0, n_repeats, 3))
    assert sorted(read) == [(name, repeat) for name in ("all-reduce", "single") for repeat in drawn]
    assert report.left_out == ()
    n_undrawn = 2 * (n_repeats - len(drawn))
    assert f"; {n_undrawn} repeats are not drawn" in reports.render([path], "html")


def test_steps_are_the_slowest_workers_with_warm_up_first(tmp_path: Path) -> None:
    report = build([load(write_run(tmp_path / "run", [ALONE, REDUCE]))], read_steps=read_steps)
    (steps, *_) = row(report.comparisons[0], "all-reduce").steps
    assert isinstance(steps, StepSeries)
    assert (len(steps.seconds), steps.n_warmup) == (58, 8)
    assert steps.seconds[0] > 3 * steps.seconds[-1]


def test_a_loss_stands_with_the_number_of_its_step(tmp_path: Path) -> None:
    run = load(write_run(tmp_path / "run", [REDUCE]))
    # The warm-up of one repeat took longer.
    first, *rest = run.records
    records = (dataclasses.replace(first, warmup_steps=20), *rest)
    run = dataclasses.replace(run, stored=dataclasses.replace(run.stored, records=records))
    (comparison,) = build([run]).comparisons
    (cells,) = check_table(comparison).rows
    assert [cell.note.partition(", ")[0] for cell in cells[-2:]] == ["steps 9 to 21", "steps 58 to 70"]
    alike = comparison.rows[0].loss_first
    assert alike is not None
    assert cells[-2].note.endswith(f"n = 3, all {plain(alike.low)}")


@pytest.mark.parametrize("missing", [{"warmup_steps": None}, {"step_s": None}, {"step_s": StepSeconds(n=0)}])
def test_a_loss_whose_step_is_not_stored_has_no_number(tmp_path: Path, missing: dict[str, Any]) -> None:
    record, *_ = load(write_run(tmp_path / "run", [REDUCE])).records
    assert timed_span(record) == (9, 58)
    assert timed_span(dataclasses.replace(record, **missing)) is None


def test_facts_of_a_run_are_named_and_counts_are_whole(tmp_path: Path) -> None:
    run = load(write_run(tmp_path / "run", [REDUCE]))
    first, *_ = run.records
    assert first.method is not None
    method = dataclasses.replace(first.method, cores_per_worker=1.0, memory_per_worker_bytes=4 * 10**9)
    kinds = (GpuFacts(model="H100", power_limit_w=700.0), GpuFacts(model="H200", power_limit_w=700.0))
    changed = dataclasses.replace(first, method=method, machine=Machine(gpus=kinds))
    stored = dataclasses.replace(run.stored, records=(changed,))
    facts = dict(origin_of(dataclasses.replace(run, stored=stored)).facts)
    assert (facts["cores per worker"], facts["memory per worker"]) == ("1", "4.00 GB")
    assert facts["timed steps"] == "50"
    assert (facts["GPU"], facts["power limit of a GPU, W"]) == ("H100; H200", "700")


def test_an_empty_run_makes_an_empty_report(tmp_path: Path) -> None:
    report = build([load(write_run(tmp_path / "run", []))])
    assert isinstance(report, Report)
    assert report.comparisons == ()
    (hint,) = report.hints
    assert "has no result: it stopped before a repeat ended" in hint


def test_the_time_of_a_traced_step_is_the_mean_over_its_workers(compare: Compare) -> None:
    split = row(compare([REDUCE, ALONE]), "all-reduce").time_split
    assert split is not None
    results = (split.step_s, split.compute_s, split.transfer_s, split.wait_s, split.rest_s, split.receiving_s)
    assert [mean.value for mean in results] == pytest.approx([0.010, 0.0045, 0.002, 0.001, 0.0025, 0.003])
    assert split.received_bytes is not None
    assert (split.received_bytes.value, split.step_s.n) == (2000, 3)


def test_a_trace_whose_workers_are_not_all_there_is_not_used(tmp_path: Path) -> None:
    record, *_ = load(write_run(tmp_path / "run", [REDUCE])).records
    traced = record.traced_step
    assert traced is not None

    def but(**changes: tuple[float, ...]) -> Record:
        return dataclasses.replace(record, traced_step=dataclasses.replace(traced, **changes))

    assert time_split_of([record, but(wait_s=(0.0,))]) == time_split_of([record])
    assert time_split_of([but(step_s=()), dataclasses.replace(record, traced_step=None)]) is None


def test_bandwidth_is_that_of_the_worker_that_transfers_longest(tmp_path: Path) -> None:
    """Both workers send 1 MB in a step and transfer for 3 ms; their gradients are 0.6 MB."""
    cases = [change(REDUCE, noise=0.0, payload=2e6, overhead=1.0, gradients=600_000), ALONE]
    reduce, alone = load(write_run(tmp_path / "run", cases, n_repeats=1)).records
    if reduce.strategy == "single":
        reduce, alone = alone, reduce
    split = time_split_of([reduce])
    assert split is not None
    results = split.algorithm_bytes_per_s, split.bus_bytes_per_s, split.n_transfers
    assert [mean and mean.value for mean in results] == pytest.approx([2e8, 1e6 / 0.003, 14])
    of_one = time_split_of([alone])
    assert of_one is None or of_one.bus_bytes_per_s is None


@pytest.mark.parametrize("hosts", [None, (0, 0)])
def test_where_nothing_leaves_its_host_or_is_lost_bytes_have_no_columns_for_it(
    compare: Compare, hosts: tuple[int, ...] | None
) -> None:
    table = byte_table(compare([ALONE, change(REDUCE, hosts=hosts, resent=0.0)]))
    assert [column.name for column in table.columns][-1] == "TCP ÷ payload"


def test_bytes_between_hosts_and_those_sent_again_are_told(compare: Compare) -> None:
    apart = change(REDUCE, hosts=(0, 1), resent=5.0, payload=1000.0, overhead=1.0)
    table = byte_table(compare([ALONE, apart]))
    assert [column.name for column in table.columns][-2:] == ["of TCP between hosts", "sent again"]
    outputs = {line[0].text: [cell.text for cell in line[-2:]] for line in table.rows}
    assert outputs["all-reduce"] == ["1.00 kB", "5.00 B"]


def test_only_strategies_with_a_traced_step_are_in_its_table(compare: Compare) -> None:
    reduce = change(REDUCE, payload=2e6, overhead=1.0)
    table = trace_table(compare([change(PS, traced=False), reduce]))
    assert table is not None
    (cells,) = table.rows
    assert [cell.text for cell in cells] == [
        "all-reduce",
        "10.0 ms",
        "4.50 ms",
        "2.00 ms",
        "1.00 ms",
        "2.50 ms",
        "3.00 ms",
        "33 %",
        "14",
        "–",
        "333 MB/s",
    ]
    assert cells[2].note == "45 %, n = 3, all 4.50 ms"


def test_a_traced_step_on_gpus_has_columns_for_copies_and_the_host(compare: Compare) -> None:
    comparison = compare([PS, REDUCE])
    on_cpu, on_gpu = comparison.rows
    split = on_gpu.time_split
    assert split is not None
    of_host = dataclasses.replace(split, copy_s=split.wait_s, host_s=split.rest_s)
    rows = (on_cpu, dataclasses.replace(on_gpu, time_split=of_host))
    table = trace_table(dataclasses.replace(comparison, rows=rows))
    assert table is not None
    assert [column.name for column in table.columns][3:7] == [
        "transfer",
        "copies in it",
        "host",
        "waiting for workers",
    ]
    without, with_host = ([cell.text for cell in line[3:7]] for line in table.rows)
    assert without[1:3] == ["–", "–"]
    assert with_host[1:3] == [seconds(split.wait_s.value), seconds(split.rest_s.value)]


def test_without_any_traced_step_there_is_no_table(compare: Compare) -> None:
    assert trace_table(compare([change(PS, traced=False)])) is None


def test_a_predicted_step_stands_beside_the_measured_one(compare: Compare) -> None:
    cases = [ALONE, CONTROL, change(REDUCE, p50_s=0.010, noise=0.0, predicted_s=0.008)]
    comparison = compare(cases)
    compared = row(comparison, "all-reduce")
    assert compared.predicted_step_s is not None
    assert compared.step_over_predicted is not None
    assert compared.predicted_step_s.value == 0.008
    assert compared.step_over_predicted.value == pytest.approx(1.25, rel=0.01)
    assert compared.prediction_error == pytest.approx(-0.2, abs=0.01)
    assert row(comparison, "single").prediction_error is None


def test_unequal_limits_of_links_are_noted(compare: Compare) -> None:
    unequal = {"link_mbit": (80.0, 8.0), "noise": 0.0}
    comparison = compare([change(CONTROL, **unequal), change(REDUCE, **unequal)])
    assert "link limits differ: worker 0 80.0 Mbit/s, worker 1 8.00 Mbit/s" in comparison.notes


def test_equal_links_have_no_note(compare: Compare) -> None:
    assert not [note for note in compare([ALONE, CONTROL, REDUCE]).notes if "link limits" in note]


def test_processor_time_energy_and_price_are_told_where_they_are_known(compare: Compare) -> None:
    alone = change(ALONE, price_per_hour=1.0, cpu_s=0.018)
    reduce_ = change(REDUCE, price_per_hour=2.6, cpu_s=0.012, package_j=1.5)
    comparison = compare([alone, reduce_])
    table = cost_table(comparison)
    assert [column.name for column in table.columns] == [
        "strategy",
        "CPU time of a step",
        "energy of a step, J",
        "cost of a million examples",
        "graph rewrite",
    ]
    first, second = table.rows
    assert [cell.text for cell in first[:3]] == ["all-reduce", "24.0 ms", "1.50"]
    assert first[3].note.startswith("at 2.60 an hour, n = 3")
    assert [cell.text for cell in second[:3]] == ["single", "18.0 ms", "–"]
    # Twice as fast for 2.6 times the price.
    assert comparison.verdict.leaders == ("all-reduce",)
    assert "single is cheapest: " in comparison.verdict.details[-1]
    cost = row(comparison, "all-reduce").cost_per_million
    assert cost is not None
    assert cost.value == pytest.approx(2.6 / 3600 * 0.010 / 64 * 1e6, rel=0.05)


def test_memory_of_gpus_is_the_peak_where_it_is_known(compare: Compare) -> None:
    known = GpuUse(n_gpus=1, own_bytes=3 * 10**9, peak_bytes=2 * 10**9)
    without_peak = dataclasses.replace(known, peak_bytes=None, why_no={"peak_bytes": "no answer"})
    comparison = compare([change(ALONE, gpus=without_peak), change(REDUCE, gpus=known)])
    table = cost_table(comparison)
    place = [column.name for column in table.columns].index("largest worker's GPU memory")
    cells = {cells[0].text: cells[place] for cells in table.rows}
    assert (cells["all-reduce"].text, cells["all-reduce"].note) == (
        "2.00 GB",
        "peak of TensorFlow's allocator",
    )
    assert (cells["single"].text, cells["single"].note) == ("3.00 GB", "held when windows ended")
    assert "GPU figures unknown in some repeats: peak memory (no answer)" in comparison.notes


def test_prices_that_even_speed_out_are_not_told_apart(compare: Compare) -> None:
    comparison = compare([change(ALONE, price_per_hour=1.0), change(REDUCE, price_per_hour=2.0)])
    assert " are tied for cheapest: " in comparison.verdict.details[-1]


def test_without_prices_nothing_is_cheapest(compare: Compare) -> None:
    comparison = compare([ALONE, REDUCE])
    assert not any("cheapest" in text for text in comparison.verdict.details)
    assert "cost of a million examples" not in [column.name for column in cost_table(comparison).columns]


def test_what_is_wrong_is_never_cheapest(compare: Compare) -> None:
    wrong = change(REDUCE, equivalent=False, price_per_hour=0.01)
    comparison = compare([change(ALONE, price_per_hour=1.0), change(PS, price_per_hour=2.0), wrong])
    assert "single is cheapest" in comparison.verdict.details[-1]


def test_the_part_of_transfer_that_computing_hides(compare: Compare) -> None:
    split = row(compare([ALONE, REDUCE]), "all-reduce").time_split
    assert split is not None
    assert split.hidden_share is not None
    assert split.hidden_share.value == pytest.approx(1 / 3)


def test_power_of_gpus_is_their_energy_over_the_time_of_a_step(compare: Compare) -> None:
    comparison = compare([change(ALONE, gpus=GpuUse(n_gpus=1, joules_per_step=6.0)), REDUCE], n_repeats=1)
    with_gpus = next(row for row in comparison.rows if row.strategy == "single")
    assert with_gpus.gpu_w is not None
    assert with_gpus.gpu_j is not None
    assert with_gpus.gpu_w.value == pytest.approx(with_gpus.gpu_j.value / 0.020, rel=0.1)
    table = cost_table(comparison)
    place = [column.name for column in table.columns].index("power of GPUs, W")
    assert sorted(row[place].note for row in table.rows) == ["", "n = 1"]


PLAIN = Case(workload="w", strategy="all-reduce", p50_s=0.010)
HALF = replace(PLAIN, params={"compressor": "fp16"})
TOP = replace(PLAIN, params={"compressor": "topk"})


def baseline(path: Path, cases: list[Case], *, backwards: bool) -> tuple[str | None, Sequence[str]]:
    """The baseline that `all-reduce` names, and the notes on it."""
    run = load(write_run(path / "run", cases, baseline="all-reduce"))
    (by_name,) = shapes_of(run).values()
    ordered = dict(sorted(by_name.items(), reverse=backwards))
    rates = {name: rates_of(filter(is_usable, records)) for name, records in ordered.items()}
    return baseline_of(run, ordered, rates)


@pytest.mark.parametrize("backwards", [False, True])
def test_the_strategy_of_just_that_name_is_the_baseline(tmp_path: Path, *, backwards: bool) -> None:
    assert baseline(tmp_path, [PLAIN, HALF], backwards=backwards) == ("all-reduce", ())


@pytest.mark.parametrize("backwards", [False, True])
def test_of_several_that_a_bare_name_may_mean_it_is_always_the_same(
    tmp_path: Path, *, backwards: bool
) -> None:
    assert baseline(tmp_path, [HALF, TOP], backwards=backwards) == ("all-reduce:compressor=fp16", ())


@pytest.mark.parametrize("backwards", [False, True])
def test_nothing_stands_in_for_a_baseline_without_a_figure_but_with_a_note(
    tmp_path: Path, *, backwards: bool
) -> None:
    failed = replace(PLAIN, problems=dict.fromkeys(range(3), ("failed", DIED)))
    name, notes = baseline(tmp_path, [failed, HALF], backwards=backwards)
    assert name == "all-reduce:compressor=fp16"
    assert [note.partition(";")[0] for note in notes] == ["baseline all-reduce has no result"]
