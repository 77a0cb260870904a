"""`stratbench list`: what there is to choose from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import partial
from typing import Annotated

import typer

from harness.cli import output
from harness.cli.output import Answer

EXAMPLE = "stratbench list strategies"


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
    kind: Annotated[ListedKind, typer.Argument(help="What to list.")],
) -> Answer:
    """List strategies, workloads, providers, compressors, rules, faults or experiments, with parameters."""
    rows = _SOURCES[kind]()
    return Answer(document=rows, show=partial(_show, rows))


def _strategies() -> Sequence[Mapping[str, object]]:
    from strategies import registry

    return registry.describe()


def _workloads() -> Sequence[Mapping[str, object]]:
    from workloads import registry

    return registry.describe()


def _providers() -> Sequence[Mapping[str, object]]:
    from harness import cluster

    return cluster.describe()


def _compressors() -> Sequence[Mapping[str, object]]:
    from strategies.plan import compressors

    return compressors.describe()


def _aggregators() -> Sequence[Mapping[str, object]]:
    from strategies.builders import robust

    return robust.describe()


def _faults() -> Sequence[Mapping[str, object]]:
    from strategies.plan import faults

    return faults.describe()


def _experiments() -> Sequence[Mapping[str, object]]:
    from harness.experiment.load import read, resolve, shipped

    experiments: list[Mapping[str, object]] = []
    for path in shipped():
        spec = resolve(read(path))
        workloads = ", ".join(str(ref) for ref in spec.workloads)
        strategies = ", ".join(str(ref) for ref in spec.strategies)
        experiments.append({"name": path.stem, "summary": f"{strategies} on {workloads}", "params": []})
    return experiments


_SOURCES: Mapping[ListedKind, Callable[[], Sequence[Mapping[str, object]]]] = {
    ListedKind.STRATEGIES: _strategies,
    ListedKind.WORKLOADS: _workloads,
    ListedKind.PROVIDERS: _providers,
    ListedKind.COMPRESSORS: _compressors,
    ListedKind.AGGREGATORS: _aggregators,
    ListedKind.FAULTS: _faults,
    ListedKind.EXPERIMENTS: _experiments,
}


def _show(rows: Sequence[Mapping[str, object]]) -> None:
    headers = ["name"]
    if any("class" in row for row in rows):
        headers.append("class")
    has_params = any(row.get("params") for row in rows)
    output.table(
        [*headers, "summary", *(["parameters"] if has_params else [])],
        [
            [
                *(str(row.get(header, "")) for header in headers),
                str(row["summary"]),
                *([_params(row.get("params"))] if has_params else []),
            ]
            for row in rows
        ],
    )


def _params(params: object) -> str:
    if not isinstance(params, Sequence):
        return ""
    return " ".join(f"{item['name']}={_default(item['default'])}" for item in params)


def _default(value: object) -> str:
    if value is None:
        return "none"
    return str(value).lower() if isinstance(value, bool) else str(value)
