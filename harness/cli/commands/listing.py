"""`stratbench list`: strategies, workloads, experiments and other choices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
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


def listing(
    kind: Annotated[ListedKind, typer.Argument(metavar="KIND", help=f"One of: {', '.join(ListedKind)}.")],
    name: Annotated[
        str | None, typer.Argument(metavar="[NAME]", help="One entry, with its parameters.")
    ] = None,
) -> Answer:
    """List strategies, workloads, experiments and more."""
    rows = _SOURCES[kind]()
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


def _strategies() -> Sequence[Row]:
    from strategies import registry

    return registry.describe()


def _workloads() -> Sequence[Row]:
    from workloads import registry

    return registry.describe()


def _providers() -> Sequence[Row]:
    from harness import cluster

    return cluster.describe()


def _compressors() -> Sequence[Row]:
    from strategies.plan import compressors

    return compressors.describe()


def _aggregators() -> Sequence[Row]:
    from strategies.builders import robust

    return robust.describe()


def _faults() -> Sequence[Row]:
    from strategies.plan import faults

    return faults.describe()


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


_SOURCES: Mapping[ListedKind, Callable[[], Sequence[Row]]] = {
    ListedKind.STRATEGIES: _strategies,
    ListedKind.WORKLOADS: _workloads,
    ListedKind.PROVIDERS: _providers,
    ListedKind.COMPRESSORS: _compressors,
    ListedKind.AGGREGATORS: _aggregators,
    ListedKind.FAULTS: _faults,
    ListedKind.EXPERIMENTS: _experiments,
}


def _show(rows: Sequence[Row], kind: ListedKind) -> None:
    columns = [key for key in ("usual_name", "class") if any(row.get(key) for row in rows)]
    if columns:
        # A summary has a line of its own, so that nothing is wider than 100 columns.
        output.lined_table(
            ["name", *(_HEADERS[key] for key in columns)],
            [[str(row["name"]), *(str(row.get(key, "")) for key in columns)] for row in rows],
            [str(row["summary"]) for row in rows],
        )
    else:
        output.table(["name", "summary"], [[str(row["name"]), str(row["summary"])] for row in rows])
    output.say()
    classes = {str(row["class"]) for row in rows if "class" in row}
    for name, meaning in _CLASSES.items():
        if name in classes:
            output.say(f"{name}: {meaning}")
    if any(row["params"] for row in rows) or kind is ListedKind.EXPERIMENTS:
        details = "Details" if kind is ListedKind.EXPERIMENTS else "Parameters"
        output.say(f"{details}: stratbench list {kind.value} NAME")


def _show_entry(entry: Row) -> None:
    usual_name = f" ({entry['usual_name']})" if entry.get("usual_name") else ""
    output.say(f"{entry['name']}{usual_name}: {entry['summary']}")
    if "class" in entry:
        output.say(f"Correctness: {entry['class']} - {_CLASSES[str(entry['class'])]}")
    for key in ("workloads", "strategies"):
        if isinstance(listed := entry.get(key), Sequence):
            output.say(f"{key.capitalize()}: {', '.join(listed)}")
    params = entry["params"]
    if not isinstance(params, Sequence) or not params:
        return
    output.say()
    output.table(
        ["parameter", "default", "unit", "effect"],
        [[item["name"], _default(item["default"]), item["unit"], item["summary"]] for item in params],
    )


def _default(value: object) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
