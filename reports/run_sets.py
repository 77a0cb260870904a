"""Title of a report, and hints on its runs as wholes."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from reports.legible_runs import legible
from reports.load import Run


def report_title(runs: Sequence[Run]) -> str:
    """The experiments of the runs, and how many runs there are of them."""
    names = ", ".join(dict.fromkeys(_experiment(run) for run in runs))
    return f"{names}, {len(runs)} runs" if len(runs) > 1 else names or "empty report"


def hints_of(runs: Sequence[Run]) -> tuple[str, ...]:
    """Hints on runs without any result, and commands that compare runs of one experiment that share cases."""
    by_experiment: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda each: each.stored.created_utc or ""):
        by_experiment.setdefault(_experiment(run), []).append(run)
    newest = [(name, alike[-2], alike[-1]) for name, alike in by_experiment.items() if len(alike) > 1]
    return (
        *(_empty_hint(run) for run in runs if not run.records),
        *(
            _compare_hint(name, earlier, later)
            for name, earlier, later in newest
            if _cases(earlier) & _cases(later)
        ),
    )


def _cases(run: Run) -> set[str]:
    return {record.case for record in run.records}


def _empty_hint(run: Run) -> str:
    return (
        f"{run.name} has no result: it stopped before a repeat ended, or its results cannot be read. Its "
        f"logs are in {_folder(run)}; `stratbench run --resume` goes on with it."
    )


def _compare_hint(name: str, earlier: Run, later: Run) -> str:
    return (
        f"Strategies are compared within each run. What has changed between runs of {name}: "
        f"stratbench compare {_folder(earlier)} {_folder(later)}"
    )


def _folder(run: Run) -> str:
    """The folder as the person typed it who made the report, for a shell."""
    return shlex.quote(legible(str(run.stored.path)))


def _experiment(run: Run) -> str:
    return str(run.experiment.get("name") or run.name)
