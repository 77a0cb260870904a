"""Curves of one comparison: trade-off, losses, rounds, and shares of workers, with their tables."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from synthetic_run import NONE, SINGLE, Case, write_run

from harness.records.outcome import Rounds
from harness.records.record import Record
from reports.charts import comparison as charts
from reports.compare import build
from reports.curves.fault_matrix import undominated
from reports.load import load
from reports.quantities import MISSING
from reports.rows.report import Comparison, LossCurve, TradeOff
from reports.tables.curves import loss_table, memory_table, trade_off_table

Change = Callable[[Record], Mapping[str, object]]
Compare = Callable[..., Comparison]

ALONE = Case(workload="w", p50_s=0.020, **SINGLE)
REDUCE = Case(workload="w", strategy="all-reduce", p50_s=0.010, payload=2e6)
PS = Case(workload="w", strategy="ps", p50_s=0.016, payload=1e6)


@pytest.fixture
def changed(tmp_path: Path) -> Compare:
    """The one comparison of a small run whose records are changed after it was written."""

    def make(cases: list[Case], change: Change, **options: Any) -> Comparison:
        run = load(write_run(tmp_path / "run", cases, **options))
        records: list[Record] = []
        for record in run.records:
            fields: Mapping[str, Any] = change(record)
            records.append(replace(record, **fields))
        (comparison,) = build([replace(run, stored=replace(run.stored, records=tuple(records)))]).comparisons
        return comparison

    return make


def trade_off(comparison: Comparison) -> TradeOff:
    assert comparison.curves.trade_off is not None
    return comparison.curves.trade_off


@pytest.mark.parametrize(
    ("points", "front"),
    [
        ({"a": (1, 2), "b": (2, 1)}, ("a", "b")),
        ({"a": (1, 2), "b": (1, 1)}, ("a",)),
        ({"a": (1, 1), "b": (1, 1)}, ("a", "b")),
        ({"a": (2, 2), "b": (1, 1), "c": (3, 0)}, ("a", "c")),
        ({}, ()),
    ],
)
def test_the_front_has_all_that_no_other_beats(
    points: dict[str, tuple[float, float]], front: tuple[str, ...]
) -> None:
    assert undominated(points) == front


def test_what_is_slower_and_sends_more_is_behind(compare: Compare) -> None:
    wasteful = replace(PS, strategy="wasteful", p50_s=0.017)
    wrong = replace(PS, strategy="wrong", p50_s=0.001, payload=10.0, equivalent=False)
    comparison = compare([ALONE, REDUCE, PS, wasteful, wrong, Case(workload="w", p50_s=0.005, **NONE)])
    curve = trade_off(comparison)
    assert curve.layer == "tcp"
    assert {point.strategy: (point.can_win, point.on_front) for point in curve.points} == {
        "all-reduce": (True, True),
        "ps": (True, True),
        "single": (True, True),
        "wasteful": (True, False),
        "wrong": (False, False),
        "none": (False, False),
    }
    table = trade_off_table(comparison)
    assert table is not None
    outputs = {cells[0].text: cells for cells in table.rows}
    assert [outputs[name][4].text for name in ("ps", "wasteful", "wrong")] == [
        "Pareto front",
        "dominated",
        "cannot win",
    ]
    assert outputs["ps"][2].note.startswith("n = 3, ")


def test_without_tcp_of_all_candidates_the_payload_counts(changed: Compare) -> None:
    def forget(record: Record) -> Mapping[str, object]:
        return {"tcp_bytes_per_step": None} if record.strategy == "ps" else {}

    curve = trade_off(changed([ALONE, REDUCE, PS], forget))
    assert curve.layer == "payload"
    assert {p.strategy: p.sent_bytes.value for p in curve.points} == {
        "all-reduce": 2e6,
        "ps": 1e6,
        "single": 0,
    }


@pytest.mark.parametrize(
    ("noise", "n_repeats", "behind"), [(0.05, 3, False), (0.0005, 3, True), (0.0005, 2, False)]
)
def test_only_what_repeats_show_is_behind(
    compare: Compare, noise: float, n_repeats: int, *, behind: bool
) -> None:
    # Some bytes more in each repeat are nothing that is worth a word.
    ring = replace(REDUCE, strategy="ring", p50_s=0.0101, noise=noise, overhead=1.0061)
    comparison = compare([ALONE, replace(REDUCE, noise=noise), ring], n_repeats=n_repeats)
    on_front = {point.strategy: point.on_front for point in trade_off(comparison).points}
    assert on_front == {"all-reduce": True, "ring": not behind, "single": True}
    ranks = {row.strategy: row.rank for row in comparison.rows}
    assert (ranks["ring"] is not None and ranks["ring"] > 1) is behind


def test_bytes_that_repeats_tell_apart_put_equals_in_rate_behind(compare: Compare) -> None:
    more = replace(REDUCE, strategy="more", p50_s=0.0101, noise=0.05, payload=2.2e6)
    curve = trade_off(compare([ALONE, replace(REDUCE, noise=0.05), more]))
    assert {point.strategy: point.on_front for point in curve.points}["more"] is False


def test_a_bound_on_bytes_is_said_and_puts_nothing_behind(changed: Compare) -> None:
    rows = replace(PS, strategy="rows", payload=2.5e6, payload_is_bound=True)
    comparison = changed([ALONE, REDUCE, rows], lambda _: {"tcp_bytes_per_step": None})
    points = {point.strategy: point for point in trade_off(comparison).points}
    # Slower, and more at most: it may well send less.
    assert (points["rows"].is_bound, points["rows"].on_front) == (True, True)
    assert (points["all-reduce"].is_bound, points["all-reduce"].on_front) == (False, True)
    table = trade_off_table(comparison)
    assert table is not None
    assert {cells[0].text: cells[3].text for cells in table.rows} == {
        "all-reduce": "2.00 MB",
        "rows": "at most 2.50 MB",
        "single": "0 B",
    }
    chart = charts.trade_off(comparison)
    assert chart is not None
    (drawn,) = [point for point in chart.points if point.key == "rows"]
    assert drawn.name == "rows, at most"
    assert "at most 2.50 MB a step" in drawn.tip


def test_one_candidate_is_no_trade_off(compare: Compare) -> None:
    comparison = compare([REDUCE, replace(PS, equivalent=False)])
    assert comparison.curves.trade_off is None
    assert trade_off_table(comparison) is None


def loss_curve(comparison: Comparison, strategy: str) -> LossCurve:
    (curve,) = [loss for loss in comparison.curves.losses if loss.strategy == strategy]
    return curve


def test_losses_are_those_of_steps_after_the_warm_up(changed: Compare) -> None:
    def losses(record: Record) -> Mapping[str, object]:
        return {"loss": (3.0, 2.0 + record.repeat, 1.0)}

    curve = loss_curve(changed([replace(REDUCE, noise=0.0)], losses), "all-reduce")
    # 8 steps of warm-up, and 50 after it of which 3 were stored.
    assert curve.at_steps == (9, 33, 58)
    assert curve.mean == (3.0, 3.0, 1.0)
    assert (curve.low, curve.high) == ((3.0, 2.0, 1.0), (3.0, 4.0, 1.0))
    assert curve.n == 3
    assert curve.at_s == pytest.approx([0.09, 0.33, 0.58], rel=1e-3)


def test_seconds_follow_the_windows_where_these_make_up_all_steps(changed: Compare) -> None:
    def rounds(record: Record) -> Mapping[str, object]:
        windows = Rounds(block="b", n_steps=20, n_lead=5, n_made=50, step_s=(0.1, 0.3))
        return {"loss": (3.0, 2.0, 1.0), "rounds": windows}

    curve = loss_curve(changed([replace(REDUCE, noise=0.0)], rounds), "all-reduce")
    warm_up_s = 8 * 0.01
    assert curve.at_s == pytest.approx([warm_up_s + 0.1, warm_up_s + 2.5, warm_up_s + 2.5 + 7.5], rel=1e-3)


def test_repeats_with_other_warm_ups_meet_at_the_steps_that_all_made(changed: Compare) -> None:
    def losses(record: Record) -> Mapping[str, object]:
        warmup = 8 + 10 * record.repeat
        return {"warmup_steps": warmup, "loss": tuple(float(warmup + 1 + k) for k in range(50))}

    curve = loss_curve(changed([REDUCE], losses, n_repeats=2), "all-reduce")
    # The loss of each step is its number, so that the mean at a step is it too.
    assert (curve.at_steps[0], curve.at_steps[-1]) == (19, 58)
    assert curve.mean == tuple(map(float, curve.at_steps))
    assert (curve.low, curve.high) == ((), ())


def test_what_is_not_finite_is_a_gap_and_points_are_few(changed: Compare) -> None:
    def losses(record: Record) -> Mapping[str, object]:
        values = [1.0] * 100
        losses = [None] if record.repeat == 1 else [1.0]
        return {"loss": (*values[:99], *losses), "step_s": replace(record.step_s, n=1000)}  # type: ignore[type-var]

    comparison = changed([REDUCE], losses)
    curve = loss_curve(comparison, "all-reduce")
    assert len(curve.at_steps) == 40
    assert (curve.mean[-2], curve.mean[-1]) == (1.0, None)
    table = loss_table(comparison)
    assert table is not None
    assert [cell.text for cell in table.rows[0]] == ["all-reduce", "3", *["1.00"] * 4, "not finite"]
    assert table.rows[0][-1].note.startswith("step 1,008, ")


@pytest.mark.parametrize(
    ("n_losses", "columns", "steps"),
    [
        (2, ["first", "last"], [9, 58]),
        (3, ["first", "about half", "last"], [9, 33, 58]),
        (4, ["first", "about a quarter", "about three quarters", "last"], [9, 25, 42, 58]),
        (5, ["first", "about a quarter", "about half", "about three quarters", "last"], [9, 21, 33, 46, 58]),
        (6, ["first", "about a quarter", "about half", "about three quarters", "last"], [9, 19, 29, 48, 58]),
    ],
)
def test_a_short_curve_shows_each_loss_once_where_it_is(
    changed: Compare, n_losses: int, columns: list[str], steps: list[int]
) -> None:
    comparison = changed([REDUCE], lambda _: {"loss": (2.0,) * n_losses})
    table = loss_table(comparison)
    assert table is not None
    assert [column.name for column in table.columns][2:] == columns
    notes = [cell.note.partition(",")[0] for cell in table.rows[0][2:]]
    assert notes == [f"step {step}" for step in steps]


def test_a_short_curve_beside_a_long_one_has_gaps(changed: Compare) -> None:
    def losses(record: Record) -> Mapping[str, object]:
        return {"loss": (2.0,) * (2 if record.strategy == "ps" else 50)}

    table = loss_table(changed([REDUCE, PS], losses))
    assert table is not None
    outputs = {cells[0].text: [cell.text for cell in cells[2:]] for cells in table.rows}
    assert outputs == {"all-reduce": ["2.00"] * 5, "ps": ["2.00", *[MISSING] * 3, "2.00"]}


def test_without_losses_there_is_no_curve(changed: Compare) -> None:
    comparison = changed([ALONE, REDUCE], lambda record: {"loss": None})
    assert comparison.curves.losses == ()
    assert loss_table(comparison) is None


def in_rounds(steps_s: Mapping[str, list[list[float]]]) -> Change:
    """Strategy → repeat → median step of each window; all of a repeat ran in one block."""

    def change(record: Record) -> Mapping[str, object]:
        windows = tuple(steps_s[record.strategy][record.repeat])
        block = f"{9 - record.repeat}"
        return {"rounds": Rounds(block=block, n_steps=5, n_lead=1, n_made=50, step_s=windows)}

    return change


def test_a_slow_round_shows_as_all_rising_together(changed: Compare) -> None:
    steps_s = {
        "all-reduce": [[0.01, 0.01, 0.01], [0.01, 0.02, 0.01]],
        "ps": [[0.02, 0.02, 0.02], [0.02, 0.06, 0.02]],
        "single": [[0.04, 0.04, 0.09], [0.04, 0.10]],
    }
    comparison = changed([ALONE, REDUCE, PS], in_rounds(steps_s), n_repeats=2)
    rounds = comparison.curves.rounds
    assert rounds is not None
    assert rounds.repeats == (0, 0, 0, 1, 1, 1)
    assert rounds.numbers == (0, 1, 2, 0, 1, 2)
    lines = {line.strategy: line for line in rounds.lines}
    assert lines["all-reduce"].relative == (1, 1, 1, 1, 2, 1)
    # It ended before the last round.
    assert lines["single"].relative == (1, 1, 2.25, 1, 2.5, None)
    assert (lines["single"].n, lines["single"].median_s) == (5, 0.04)


def test_many_rounds_are_averaged_in_groups(changed: Compare) -> None:
    windows = [0.01] * 700
    windows[650] = 0.05
    comparison = changed([REDUCE, PS], in_rounds({"all-reduce": [windows], "ps": [windows]}), n_repeats=1)
    rounds = comparison.curves.rounds
    assert rounds is not None
    assert rounds.rounds_per_point == 3
    assert len(rounds.numbers) == len(rounds.lines[0].relative) == 234
    assert max(ratio for ratio in rounds.lines[0].relative if ratio) == pytest.approx(7 / 3, abs=1e-3)


def test_cases_that_were_timed_alone_have_no_rounds(compare: Compare) -> None:
    comparison = compare([ALONE, REDUCE])
    assert comparison.curves.rounds is None


def test_memory_of_each_worker_beside_its_variables(changed: Compare) -> None:
    def peaks(record: Record) -> Mapping[str, object]:
        if record.strategy == "single":
            return {"peak_rss_bytes": None}
        return {"peak_rss_bytes": (100 + 10 * record.repeat, None, 400), "variable_bytes": (30, 0, 60)}

    comparison = changed([ALONE, replace(REDUCE, workers=3)], peaks)
    (memory,) = comparison.curves.memory
    assert (memory.strategy, memory.n, memory.peak_bytes) == ("all-reduce", 3, (110, None, 400))
    assert (memory.low, memory.high) == ((100, None, 400), (120, None, 400))
    assert memory.variable_bytes == (30, 0, 60)
    table = memory_table(comparison)
    assert table is not None
    (cells,) = table.rows
    assert [cell.text for cell in cells] == ["all-reduce", "3", "400 B", "110 B", "60.0 B", "0 B", "3"]
    assert cells[3].note == "worker 0, 100 B–120 B"


def test_memory_that_no_repeat_differs_in_has_no_range(compare: Compare) -> None:
    assert {(point.low, point.high) for point in compare([ALONE, REDUCE]).curves.memory} == {((), ())}
