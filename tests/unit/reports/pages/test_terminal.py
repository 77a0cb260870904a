"""Results for a terminal: what a reader sees in ten seconds, and what is left to `--notes`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from synthetic_run import DIED, NO_GPU, NONE, SINGLE, Case, write_run

import reports
from reports.compare import build
from reports.load import load
from reports.pages.terminal import to_text

ALONE = Case(workload="w", p50_s=0.020, **SINGLE)
REDUCE = Case(workload="w", strategy="all-reduce", p50_s=0.010)
PS = Case(workload="w", strategy="ps", p50_s=0.016)
CONTROL = Case(workload="w", p50_s=0.005, **NONE)


def text_of(path: Path, cases: list[Case], *, with_notes: bool = False) -> str:
    return to_text(build([load(write_run(path / "run", cases))]), folder="RUN", with_notes=with_notes)


def test_a_result_is_a_headline_and_one_table(tmp_path: Path) -> None:
    title, headline, columns, *rows, _, legend, _, more = text_of(
        tmp_path, [ALONE, CONTROL, PS, REDUCE]
    ).splitlines()
    assert title == "w   2 workers · CPU · batch 64 · 3 repeats"
    assert headline.startswith("  WINNER  all-reduce, ")
    assert " ".join(columns.split()) == "rank strategy vs single 95 % CI ex/s step sent/step correct"
    assert [row.split()[:2] for row in rows[:3]] == [["1", "all-reduce"], ["2", "ps"], ["3", "single"]]
    assert "none (no communication)" in rows[3]
    assert legend == "sent/step: by all workers; correct: ✓ equivalent to one device, – no communication"
    assert more == "1 more note, no more warnings: stratbench report RUN --notes"


def test_a_predicted_step_is_a_column_beside_the_measured_one(tmp_path: Path) -> None:
    lines = text_of(tmp_path, [ALONE, PS, replace(REDUCE, predicted_s=0.0111)]).splitlines()
    assert " ".join(lines[2].split()) == (
        "rank strategy vs single 95 % CI ex/s step predicted sent/step correct"
    )
    assert [line.split()[1] for line in lines if "11.1 ms" in line] == ["all-reduce"]
    assert max(map(len, lines)) <= 100


def test_predictions_without_room_for_a_column_are_a_line(tmp_path: Path) -> None:
    named = replace(REDUCE, strategy="r" * 30, predicted_s=0.0111, noise=0.0)
    lines = text_of(tmp_path, [ALONE, CONTROL, PS, named]).splitlines()
    assert "predicted" not in lines[2]
    assert f"  predicted step: {'r' * 30} 11.1 ms, measured 10.0 ms" in lines
    assert max(map(len, lines)) <= 100


def test_tied_strategies_share_a_rank(tmp_path: Path) -> None:
    text = text_of(tmp_path, [ALONE, replace(REDUCE, noise=0.06), replace(PS, p50_s=0.0101, noise=0.06)])
    assert text.count("    1=  ") == 2
    assert "NO CLEAR WINNER  " in text


def test_at_most_two_warnings_are_shown_and_all_notes_on_request(tmp_path: Path) -> None:
    notes = (
        "workers share cores: 4 cores wanted, 2 available",
        "more than 1% TCP retransmits between workers",
    )
    cases = [replace(case, notes=notes, warnings=("choose ps",)) for case in (ALONE, REDUCE)]
    short = text_of(tmp_path / "short", cases)
    lines = [line for line in short.splitlines() if line.startswith("  ! ")]
    assert [line.partition(":")[0] for line in lines] == ["  ! workers share cores", "  ! single"]
    # What makes all figures doubtful comes before them, and marks the headline.
    assert short.splitlines()[1] == lines[0]
    assert short.splitlines()[2].startswith("  WINNER (provisional, cores shared)  all-reduce, ")
    whole = text_of(tmp_path / "whole", cases, with_notes=True)
    assert "more than 1% TCP retransmits between workers; check the network" in whole
    assert "--notes" not in whole


def test_repeats_without_a_result_are_one_line_per_reason(tmp_path: Path) -> None:
    never = dict.fromkeys(range(3), ("skipped", NO_GPU))
    cases = [ALONE, REDUCE, replace(PS, problems={1: ("failed", DIED)})]
    cases += [replace(PS, strategy=name, problems=never) for name in ("a", "b")]
    lines = text_of(tmp_path, cases).splitlines()
    assert "  ! failed: ps (1 of 3 repeats): worker 1 was killed by signal 9 (out of memory?)" in lines
    (skipped,) = [line for line in lines if "skipped" in line]
    assert skipped.startswith("  skipped: a, b: needs a GPU")


def test_a_sweep_ends_with_its_scaling(tmp_path: Path) -> None:
    cases = [ALONE, *(replace(REDUCE, workers=n, p50_s=0.02 / n) for n in (2, 4))]
    title, fastest, about, columns, single, reduce = (
        text_of(tmp_path, cases).partition("w: scaling")[2].partition("\n\n")[0].splitlines()
    )
    assert title == "   CPU · batch 64 in total"
    assert fastest == "  fastest: all-reduce with 2 and 4 workers"
    assert about == "  ex/s, and efficiency against single, by number of workers"
    assert columns.split() == ["strategy", "1", "2", "4"]
    assert single.split()[0] == "single"
    assert reduce.split()[:2] == ["all-reduce", "–"]
    assert len(reduce.split()) == 8


def test_a_sweep_of_batch_sizes_ends_with_a_table(tmp_path: Path) -> None:
    cases = [replace(case, batch_size=n) for n in (256, 64) for case in (ALONE, REDUCE)]
    title, about, columns, *rows = (
        text_of(tmp_path, cases).partition("w: batch sizes")[2].partition("\n\n")[0].splitlines()
    )
    assert title == "   2 workers · CPU"
    assert about == "  ex/s, and ratio to single, by batch size"
    assert columns.split() == ["strategy", "64", "256"]
    assert [row.split()[0] for row in rows] == ["all-reduce", "single"]
    assert rows[1].split()[2::2] == ["1.00×", "1.00×"]


def test_ratios_to_another_baseline_are_left_out_of_a_table_of_batch_sizes(tmp_path: Path) -> None:
    never = dict.fromkeys(range(3), ("failed", DIED))
    cases = [replace(case, batch_size=n) for n in (32, 64, 256) for case in (ALONE, REDUCE, PS)]
    cases[0] = replace(cases[0], problems=never)
    _, about, _, *rows = (
        text_of(tmp_path, cases).partition("w: batch sizes")[2].partition("\n\n")[0].splitlines()
    )
    assert about == "  ex/s, and ratio to single, by batch size"
    assert {row.split()[0]: row.count("×") for row in rows} == {"all-reduce": 2, "ps": 2, "single": 2}


def test_a_row_without_a_rank_says_why(tmp_path: Path) -> None:
    cases = [ALONE, REDUCE, replace(PS, p50_s=0.001, equivalent=False)]
    text = text_of(tmp_path, cases)
    (row,) = [line for line in text.splitlines() if "ps (" in line]
    assert row.split()[:4] == ["–", "ps", "(not", "equivalent)"]
    assert "✗ not equivalent" in text
    assert "control" not in text
    few = write_run(tmp_path / "few", [ALONE, REDUCE], n_repeats=1)
    assert "all-reduce (too few repeats)" in to_text(build([load(few)]), folder="RUN")


def test_of_many_sizes_and_strategies_a_scaling_table_shows_some(tmp_path: Path) -> None:
    cases = [replace(REDUCE, strategy=f"s{i}", workers=n) for i in range(14) for n in range(2, 9)]
    table = text_of(tmp_path, [ALONE, *cases]).partition("w: scaling")[2].splitlines()
    assert table[1].startswith("  fastest: a tie of 14 with 2, 3")
    assert table[3].split() == ["strategy", "1", "2", "3", "4", "…", "8"]
    assert ["…", "3", "more"] in [line.split() for line in table]


def test_links_of_several_rates_end_with_a_table_and_where_the_best_changes(tmp_path: Path) -> None:
    cases = [replace(case, link_mbit=(m, m)) for m in (10.0, 1000.0) for case in (ALONE, REDUCE)]
    text = text_of(tmp_path, cases).partition("w: links")[2]
    assert "10.0 Mbit/s" in text
    assert "No strategy overtakes all-reduce" in text


def test_of_many_comparisons_headlines_are_shown_alone(tmp_path: Path) -> None:
    text = text_of(tmp_path, [replace(case, workload=f"w{i}") for i in range(13) for case in (ALONE, REDUCE)])
    assert text.count("WINNER  all-reduce") == 13
    assert "rank" not in text


def test_a_name_that_is_too_long_has_a_line_of_its_own(tmp_path: Path) -> None:
    long = replace(REDUCE, strategy="compressed-all-reduce", params={"compressor": "top-k", "ratio": 0.01})
    lines = text_of(tmp_path, [ALONE, long]).splitlines()
    (place,) = [i for i, line in enumerate(lines) if line.endswith(":compressor=top-k,ratio=0.01")]
    assert lines[place].split()[0] == "1"
    assert "×" in lines[place + 1]
    assert max(map(len, lines)) <= 100


def test_text_is_literal_and_says_what_was_left_out(full_run: Path) -> None:
    text = reports.report_of(full_run).text
    assert all(line.isprintable() for line in text.splitlines())
    assert "left out: " in text
    notes = reports.text_with_notes([full_run], notify=lambda _: None, notify_damage=lambda _: None)
    assert "Faster, not ranked: " in notes


@pytest.mark.parametrize("with_notes", [False, True])
def test_a_run_without_results_says_so(tmp_path: Path, with_notes: bool) -> None:
    assert text_of(tmp_path, [], with_notes=with_notes) == "no result has been recorded"
