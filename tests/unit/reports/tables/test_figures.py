"""Figures of variables that lie in parts while a loop runs, and of emulated cores."""

from dataclasses import replace
from pathlib import Path

from synthetic_run import SINGLE, Case, write_run

from harness.records.outcome import Resharding
from reports.compare import build
from reports.load import load
from reports.pages.markdown import to_markdown
from reports.rows.report import Comparison
from reports.tables.figures import reshard_table, speed_table

ALONE = Case(workload="w", p50_s=0.020, **SINGLE)
CORES = Case(
    workload="w",
    strategy="tpu-replicate",
    params={"reshard": True},
    p50_s=0.010,
    resharding=Resharding(
        n_loops=8,
        reshards=10,
        shards=1,
        unshards=1,
        sent_bytes=2_000_000,
        whole_bytes=680_000,
        kept_bytes=170_000,
    ),
)


def compared(tmp_path: Path, *cases: Case) -> Comparison:
    return build([load(write_run(tmp_path / "run", list(cases)))]).comparisons[0]


def test_it_tells_counts_bytes_and_memory_of_each_loop(tmp_path: Path) -> None:
    table = reshard_table(compared(tmp_path, ALONE, CORES))
    assert table is not None
    rows = {row[0].text: [cell.text for cell in row[2:]] for row in table.rows}
    assert rows["tpu-replicate:reshard=true"] == ["10.0", "1.00", "1.00", "2.00 MB", "170 kB", "680 kB"]
    assert set(rows["single"]) == {"–"}
    assert len(table.columns) == len(table.rows[0])


def test_there_is_none_where_nothing_lies_in_parts(tmp_path: Path) -> None:
    report = build([load(write_run(tmp_path / "run", [ALONE, replace(CORES, resharding=None)]))])
    assert reshard_table(report.comparisons[0]) is None
    assert "Resharding" not in to_markdown(report)


def test_rates_of_emulated_cores_are_said_to_rank_nothing(tmp_path: Path) -> None:
    emulated = [replace(case, device="tpu-emulated") for case in (ALONE, CORES)]
    result, other = compared(tmp_path, *emulated), compared(tmp_path / "other", ALONE, CORES)
    assert [note for note in result.notes if note.startswith("TPU cores are emulated")]
    assert not [n for n in (*other.notes, *other.verdict.details) if "emulate" in n]


def test_the_ranking_has_usual_names_where_strategies_have_them(tmp_path: Path) -> None:
    comparison = compared(tmp_path, ALONE, CORES)
    assert "usual name" not in [column.name for column in speed_table(comparison).columns]
    first, *others = comparison.rows
    named = replace(comparison, rows=(replace(first, usual_name="FSDP, ZeRO-3"), *others))
    cells = [row[1].text for row in speed_table(named).rows]
    assert [column.name for column in speed_table(named).columns][1] == "usual name"
    assert cells == ["FSDP, ZeRO-3", "–"]
