"""Table of resharding around host loops: how often variables changed their format, and what that left."""

from __future__ import annotations

from reports.quantities import MISSING, byte_count, seconds
from reports.rows import Comparison, LoopResharding, Row
from reports.tables.table import Cell, Table, estimate_cell, mean_cell, name_cell, table_of


def reshard_table(comparison: Comparison) -> Table | None:
    """Resharding in a run of the loop on average; None where no strategy here keeps variables in parts."""
    if not any(row.resharding for row in comparison.rows):
        return None
    return table_of(
        "Resharding of a replica in each run of the host loop, also of fewer steps: asked for before "
        "each step, made where variables were whole, undone after the loop; bytes are what all replicas send "
        "to put variables together, memory is that of variables in parts: mean and range over repeats",
        (
            "strategy",
            "median step",
            "asked for",
            "made",
            "undone",
            "bytes a loop",
            "memory within loops",
            "outside",
        ),
        [_cells(row, row.resharding) for row in comparison.rows],
    )


def _cells(row: Row, found: LoopResharding | None) -> tuple[Cell, ...]:
    step = estimate_cell(row.p50_s, seconds)
    if found is None:
        return name_cell(row), step, *(Cell(text=MISSING) for _ in range(6))
    return (
        name_cell(row),
        step,
        mean_cell(found.reshards),
        mean_cell(found.shards),
        mean_cell(found.unshards),
        mean_cell(found.sent_bytes, unit="bytes"),
        Cell(text=byte_count(found.kept_bytes), value=found.kept_bytes),
        Cell(text=byte_count(found.whole_bytes), value=found.whole_bytes),
    )
