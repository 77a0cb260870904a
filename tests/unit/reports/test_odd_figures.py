"""Records made by hand with figures that no measurement has: these are left out with a line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from open_folders import made_record
from synthetic_run import SINGLE, Case, write_run

import reports
from harness.records.checksums import sealed, unsealed
from harness.records.comparison import paired_ratios
from harness.records.costs import ObserverEffect
from harness.records.outcome import Rounds
from harness.records.record import Record
from reports.case_row import mean_matrix, time_split_of
from reports.load import load
from reports.recommendation.notes import observer_notes
from reports.rows.repeat import between_hosts_bytes

FORMATS = ("html", "md", "csv", "json", "junit")
RAGGED = ((0.0, 5.0), (5.0,))
WIDE = ((0.0, 5.0, 1.0), (5.0, 0.0, 1.0))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    cases = [Case(workload="w", p50_s=0.02, **SINGLE), Case(workload="w", strategy="ps", hosts=(0, 1))]
    return write_run(tmp_path / "run", cases, minutes=(1.0, 1.2))


def edit(folder: Path, change: Callable[[dict[str, Any]], None], *, strategy: str = "ps") -> None:
    """Change the records of a strategy, and seal them anew."""
    path = folder / "results.jsonl"
    lines: list[Any] = [unsealed(json.loads(line)) for line in path.read_text().splitlines()]
    for line in lines:
        if line["strategy"] == strategy:
            change(line)
    path.write_text("".join(json.dumps(sealed(line)) + "\n" for line in lines))


def no_time(line: dict[str, Any]) -> None:
    line["rounds"]["step_s"][0] = 0.0
    line["rounds"]["step_s"][1] = -1.0


def ragged(line: dict[str, Any]) -> None:
    line["tcp_matrix"] = [[0.0, 5.0], [5.0]]


def unpaired(line: dict[str, Any]) -> None:
    line["observer"] = {"with_s": [0.01, 0.01], "without_s": [0.01]}


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (no_time, "rounds.step_s: must be above 0, got 0.0; 2 of them are left out"),
        (
            ragged,
            (
                "tcp_matrix: must have as many cells in each line as lines, got 2 lines of 1, 2; "
                "shown as missing"
            ),
        ),
        (unpaired, "observer: must have windows in pairs, got 2 with and 1 without; shown as missing"),
    ],
)
def test_a_figure_that_nothing_can_be_made_of_is_left_out_with_a_line(
    folder: Path, change: Callable[[dict[str, Any]], None], why: str
) -> None:
    edit(folder, change)
    run = load(folder)
    assert [item.why for item in run.left_out] == [why] * 3
    assert {item.where for item in run.left_out} == {f"{r.case}/{r.repeat}" for r in run.records if r.hosts}
    for name in FORMATS:
        assert "ps" in reports.render([folder], name)


def test_a_step_of_next_to_no_time_is_a_failure_of_its_repeat(folder: Path) -> None:
    def endless(line: dict[str, Any]) -> None:
        line["step_s"]["p50"] = 1e-320

    edit(folder, endless)
    for name in FORMATS:
        assert "ps" in reports.render([folder], name)
    (problem,) = json.loads(reports.render([folder], "json"))["problems"]
    assert (problem["strategy"], problem["type"], problem["repeats"]) == ("ps", "no-figure", [0, 1, 2])


@pytest.mark.parametrize(("of_ps", "of_single"), [(1e-250, 1e250), (1e250, 1e-250)])
def test_rates_further_apart_than_a_number_can_say_are_shown(
    folder: Path, of_ps: float, of_single: float
) -> None:
    for strategy, p50_s in (("ps", of_ps), ("single", of_single)):

        def take(line: dict[str, Any], p50_s: float = p50_s) -> None:
            line["rounds"], line["step_s"]["p50"] = None, p50_s

        edit(folder, take, strategy=strategy)
    assert load(folder).left_out == ()
    for name in ("md", "csv", "json", "junit"):
        assert "ps" in reports.render([folder], name)


def timed(case: str, steps_s: tuple[float, ...]) -> Record:
    rounds = Rounds(block="b", n_steps=5, n_lead=2, n_made=70, step_s=steps_s)
    return made_record(case=case, batch_size=64, rounds=rounds)


@pytest.mark.parametrize("odd_s", [0.0, -1.0, float("inf"), float("nan")])
def test_ratios_are_formed_in_rounds_in_which_both_took_time(odd_s: float) -> None:
    whole, odd = timed("a", (0.01,) * 5), timed("b", (odd_s, 0.02, 0.02, 0.02, 0.02))
    for one, other in ((whole, odd), (odd, whole)):
        assert len(paired_ratios([one], [other]).logs) == 1
    assert paired_ratios([whole], [timed("b", (odd_s,) * 5)]).logs == ()


@pytest.mark.parametrize("matrix", [RAGGED, WIDE])
def test_bytes_between_tasks_that_are_no_square_are_not_known(matrix: tuple[tuple[float, ...], ...]) -> None:
    record = made_record(tcp_matrix=matrix, hosts=(0, 1))
    assert between_hosts_bytes(record) is None
    assert mean_matrix([matrix]) is None
    assert mean_matrix([matrix, ((0.0, 2.0), (4.0, 0.0))]) == ((0.0, 2.0), (4.0, 0.0))


@pytest.mark.parametrize("matrix", [RAGGED, WIDE])
def test_a_traced_step_has_no_bus_bandwidth_then(folder: Path, matrix: tuple[tuple[float, ...], ...]) -> None:
    record = next(record for record in load(folder).records if record.strategy == "ps")
    changed = made_record(tcp_matrix=matrix, traced_step=record.traced_step)
    split = time_split_of([changed])
    assert split is not None
    assert split.bus_bytes_per_s is None


@pytest.mark.parametrize(
    "odd",
    [
        ObserverEffect(with_s=(0.02, 0.02), without_s=(0.01,)),
        ObserverEffect(with_s=(0.0,), without_s=(0.01,)),
        ObserverEffect(with_s=(0.01,), without_s=(0.0,)),
    ],
)
def test_what_measuring_takes_is_told_of_windows_in_pairs(odd: ObserverEffect) -> None:
    sound = made_record(observer=ObserverEffect(with_s=(0.0102,), without_s=(0.01,)))
    assert observer_notes({"ps": [made_record(observer=odd)]}) == []
    assert observer_notes({"ps": [made_record(observer=odd), sound]}) == [
        "Measuring changes the mean step of ps by +2.0 %."
    ]
