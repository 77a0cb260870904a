"""`stratbench list`: strategies, workloads, experiments and other choices."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from functools import partial
from importlib import import_module
from typing import Annotated, TypeAlias

import typer

from harness.cli import output
from harness.cli.output import Answer
from harness.errors import UsageError
from harness.written_values import kebab
from strategies.errors import suggestion

EXAMPLE = "stratbench list strategies all-reduce"
Row: TypeAlias = Mapping[str, object]
_HEADERS = {"usual_name": "usual name", "class": "correctness"}
_CLASSES = {
    "exact": "equal to one device, up to rounding",
    "bounded": "lossy, within a bound that every run checks",
    "statistical": "other weights than one device by design; compare losses",
    "control": "wrong on purpose; never ranked",
}
"""Correctness class → its meaning."""


class ListedKind(StrEnum):
    """Kind of thing to list."""

    STRATEGIES = "strategies"
    WORKLOADS = "workloads"
    PROVIDERS = "providers"
    COMPRESSORS = "compressors"
    AGGREGATORS = "aggregators"
    FAULTS = "faults"
    EXPERIMENTS = "experiments"


_MODULES = {
    ListedKind.STRATEGIES: "strategies.registry",
    ListedKind.WORKLOADS: "workloads.registry",
    ListedKind.PROVIDERS: "harness.cluster",
    ListedKind.COMPRESSORS: "strategies.plan.compressors",
    ListedKind.AGGREGATORS: "strategies.builders.robust",
    ListedKind.FAULTS: "strategies.plan.faults",
}
"""Kind → module whose `describe` lists it, imported only for that list."""


def listing(
    kind: Annotated[ListedKind, typer.Argument(metavar="KIND", help=f"One of: {', '.join(ListedKind)}.")],
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One entry, with its parameters.")
    ] = None,
) -> Answer:
    """List strategies, workloads, experiments and more."""
    rows = _rows(kind)
    if name is None:
        return Answer(document=rows, show=partial(_show, rows, kind))
    entry = _entry(rows, kind, name)
    return Answer(document=[entry], show=partial(_show_entry, entry))


def _entry(rows: Sequence[Row], kind: ListedKind, name: str) -> Row:
    by_name = {str(row["name"]): row for row in rows}
    wanted = kebab(name)
    if wanted not in by_name:
        raise UsageError(
            f"must be one of the {kind.value}, got {name!r}; {suggestion(wanted, sorted(by_name))}",
            field="name",
        )
    return by_name[wanted]


def _experiments() -> Sequence[Row]:
    from harness.experiment.load import read, resolve, shipped, summary_of

    experiments: list[Row] = []
    for path in shipped():
        spec = resolve(read(path))
        experiments.append(
            {
                "name": path.stem,
                "summary": summary_of(path),
                "workloads": [str(ref) for ref in spec.workloads],
                "strategies": [str(ref) for ref in spec.strategies],
                "params": [],
            }
        )
    return experiments


def _rows(kind: ListedKind) -> Sequence[Row]:
    if kind is ListedKind.EXPERIMENTS:
        return _experiments()
    rows: Sequence[Row] = import_module(_MODULES[kind]).describe()
    return rows


def _show(rows: Sequence[Row], kind: ListedKind) -> None:
    columns = [key for key in ("usual_name", "class") if any(row.get(key) for row in rows)]
    names = [str(row["name"]) for row in rows]
    summaries = [str(row["summary"]) for row in rows]
    if columns:
        # A summary has its own line, so that no line is wider than 100 columns.
        cells = [
            (name, *(str(row.get(key, "")) for key in columns)) for name, row in zip(names, rows, strict=True)
        ]
        output.table(["name", *(_HEADERS[key] for key in columns)], cells, below=summaries)
    else:
        output.table(["name", "summary"], list(zip(names, summaries, strict=True)))
    output.print_line()
    classes = {str(row["class"]) for row in rows if "class" in row}
    for name, meaning in _CLASSES.items():
        if name in classes:
            output.print_line(f"{name}: {meaning}")
    if any(row["params"] for row in rows) or kind is ListedKind.EXPERIMENTS:
        details = "Details" if kind is ListedKind.EXPERIMENTS else "Parameters"
        output.print_line(f"{details}: stratbench list {kind.value} NAME")


def _show_entry(entry: Row) -> None:
    usual_name = f" ({entry['usual_name']})" if entry.get("usual_name") else ""
    output.print_line(f"{entry['name']}{usual_name}: {entry['summary']}")
    if "class" in entry:
        output.print_line(f"Correctness: {entry['class']} - {_CLASSES[str(entry['class'])]}")
    for key in ("workloads", "strategies"):
        if isinstance(listed := entry.get(key), Sequence):
            output.print_line(f"{key.capitalize()}: {', '.join(listed)}")
    params = entry["params"]
    if not isinstance(params, Sequence) or not params:
        return
    output.print_line()
    output.table(
        ["parameter", "default", "unit", "effect"],
        [[item["name"], _default(item["default"]), item["unit"], item["summary"]] for item in params],
    )


def _default(value: object) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
