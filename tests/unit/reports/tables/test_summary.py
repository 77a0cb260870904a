"""The summary of a report: a row for each workload and shape."""

import re
from pathlib import Path

from synthetic_run import full_cases, write_run

from reports.compare import build
from reports.load import load
from reports.pages.markdown import markdown_table
from reports.tables.summary import comparison_id, summary_table


def test_each_comparison_has_winner_speedup_traffic_and_mark(tmp_path: Path) -> None:
    report = build([load(write_run(tmp_path / "run", full_cases()))])
    table = summary_table(report)
    assert table is not None
    rows = {cells[0].text: cells for cells in table.rows}
    assert [cells[0].link for cells in table.rows] == [comparison_id(i) for i in range(len(table.rows))]
    workload, winner, speedup, sent, correct = rows["wide-mlp"]
    assert (winner.text, correct.text) == ("all-reduce", "✓ equivalent")
    assert workload.note.startswith("2 workers")
    assert speedup.text.startswith("1.7")
    assert re.fullmatch(r"CI [\d.]+–[\d.]+, n = 3, vs single", speedup.note)
    assert sent.text == "33.8 MB"
    assert rows["word-lm"][1].text.startswith("tie: ")
    # A baseline that wins is set against the next.
    _, winner, speedup, *_ = rows["digits-cnn"]
    assert winner.text == "single"
    assert speedup.value is not None
    assert speedup.value > 1.0
    assert re.fullmatch(r"[\d.]+× the next, [\w-]+", speedup.text)
    assert re.fullmatch(r"CI [\d.]+–[\d.]+, n = 3; no strategy is faster than one device", speedup.note)
    assert "| wide-mlp (2 workers" in "\n".join(markdown_table(table))


def test_several_runs_have_a_column_of_their_own_and_none_has_no_table(tmp_path: Path) -> None:
    runs = [load(write_run(tmp_path / name, full_cases(), seed=i)) for i, name in enumerate("ab")]
    table = summary_table(build(runs))
    assert table is not None
    assert [column.name for column in table.columns][:2] == ["workload", "run"]
    assert summary_table(build([])) is None
