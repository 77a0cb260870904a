"""Where a row's plan puts variables: what is alike together, the largest of it where it is too much."""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.records.record import Record
from harness.records.run_layout import PLAN
from harness.records.store import StoreError
from reports.load import Run
from reports.repeat_files.placement_words import how_synchronized, where_it_lies, why
from reports.repeat_files.stored_plan import PlanError, StoredNode, StoredPlan, stored_plan
from reports.rows import LeftOut, Placement, PlacementLine

MOST_LINES = 60
"""Of one row."""
MOST_LINES_OF_ALL = 1_000
MOST_PLAN_BYTES = 1 << 26
_LEAST_LINES = 4
_NUMBER = re.compile(r"\d+")
_MOST_LETTERS = 200
"""Of a name, or of a value of an option."""
_MOST_NOTES = 20
_MOST_NOTE_LETTERS = 1_000


def lines_of_each(n_rows: int) -> int:
    """Lines that each of so many rows may have."""
    return max(_LEAST_LINES, min(MOST_LINES, MOST_LINES_OF_ALL // max(1, n_rows)))


def placement_of(
    run: Run, usable: Sequence[Record], left_out: list[LeftOut], *, most_lines: int = MOST_LINES
) -> Placement | None:
    """What the plan of the first usable repeat says; None where no repeat has one that can be read.

    Args:
        left_out: why a plan cannot be read is added to it.
    """
    for record in sorted(usable, key=lambda record: record.repeat):
        path = run.stored.name_of(record, PLAN)
        try:
            data = run.stored.file(record, PLAN, most_bytes=MOST_PLAN_BYTES)
            if data is not None:
                return _placement(stored_plan(data), path, most_lines)
        except (StoreError, PlanError) as error:
            item = LeftOut(
                where=f"{run.name}: {record.case}/{record.repeat}/{PLAN}", why=f"{error}; it is not shown"
            )
            if all(item.where != other.where for other in left_out):
                left_out.append(item)
    return None


def _placement(plan: StoredPlan, path: str, most_lines: int) -> Placement:
    groups: dict[tuple[object, ...], list[StoredNode]] = {}
    for node in plan.nodes:
        alike = (_NUMBER.sub("#", node.variable), node.shape, node.dtype, node.bytes)
        words = (where_it_lies(node, plan), how_synchronized(node, plan), why(node, plan))
        groups.setdefault((*alike, *words), []).append(node)
    lines = [_line(nodes, plan) for nodes in groups.values()]
    largest = sorted(range(len(lines)), key=lambda i: -lines[i].n * lines[i].bytes)[:most_lines]
    return Placement(
        path=path,
        lines=tuple(lines[i] for i in sorted(largest)),
        n_more=sum(line.n for line in lines) - sum(lines[i].n for i in largest),
        server_bytes=plan.server_bytes,
        worker_bytes=plan.worker_bytes,
        notes=_notes(plan.notes),
    )


def _notes(notes: Sequence[str]) -> tuple[str, ...]:
    """The first of a plan's notes, each cut where it is longer than any that stratbench writes."""
    shown = [
        note if len(note) <= _MOST_NOTE_LETTERS else f"{note[:_MOST_NOTE_LETTERS]} …"
        for note in notes[:_MOST_NOTES]
    ]
    n_more = len(notes) - len(shown)
    return (*shown, *([f"{n_more} more notes are in the plan's file"] if n_more else []))


def _line(nodes: Sequence[StoredNode], plan: StoredPlan) -> PlacementLine:
    first = nodes[0]
    name = first.variable if len(nodes) == 1 else _pattern([node.variable for node in nodes])
    buckets = {group for node in nodes for group in _buckets(node)}
    numbered = f", {_bucket_words(sorted(buckets))}" if buckets else ""
    return PlacementLine(
        name=name[:_MOST_LETTERS],
        n=len(nodes),
        shape=first.shape,
        dtype=first.dtype,
        bytes=first.bytes,
        where=where_it_lies(first, plan),
        synchronized=how_synchronized(first, plan) + numbered,
        why=why(first, plan),
    )


def _pattern(names: Sequence[str]) -> str:
    """The names with `#` for each number that they differ in."""
    numbers = list(zip(*(_NUMBER.findall(name) for name in names), strict=True))
    differs = iter(len(set(column)) > 1 for column in numbers)
    return _NUMBER.sub(lambda match: "#" if next(differs) else match[0], names[0])


def _buckets(node: StoredNode) -> tuple[int, ...]:
    if node.partition is not None and node.partition.groups is not None:
        return node.partition.groups
    return () if node.group is None else (node.group,)


def _bucket_words(buckets: Sequence[int]) -> str:
    if len(buckets) == 1:
        return f"bucket {buckets[0]}"
    if buckets[-1] - buckets[0] == len(buckets) - 1:
        return f"buckets {buckets[0]} to {buckets[-1]}"
    return f"{len(buckets)} buckets"
