"""An experiment cut down to one of its cases and its baseline, which runs with the files of any commit."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

from harness.experiment.cases import Case
from harness.experiment.model import Experiment
from harness.experiment.references import StrategyRef, file_of


def single_case(spec: Experiment, case: Case) -> Experiment:
    """The experiment of one case, measured as before, without what is only looked at afterwards.

    Args:
        case: one of the experiment's.
    """
    alone = spec.with_strategies(spec.baseline, case.strategy, baseline=spec.baseline)
    alone = alone.of_one(case.shape, case.computation, case.scenario)
    only_timed = dict.fromkeys(("trace", "aa", "observer", "exposed_comm", "evaluate"), False)
    return alone.model_copy(
        update={
            "workloads": (case.workload,),
            "measure": alone.measure.model_copy(update=only_timed),
        }
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class PlacedExperiment:
    """An experiment whose references to files of a checkout hold in any worktree of it.

    Attributes:
        start: working directory of its runs within the worktree; None where they need no file of it.
    """

    spec: Experiment
    start: Path | None


def placed_in(root: Path, spec: Experiment, *, working_directory: Path) -> PlacedExperiment:
    """Write references to files of a checkout relative to where runs start, and others in full.

    Runs start where the person did, if that is in the checkout, otherwise at its root.
    """
    files = [ref.reference for ref in spec.workloads if ref.is_path]
    files += [ref.name for ref in spec.strategies if ref.is_file]
    if not any(file_of(reference).resolve().is_relative_to(root) for reference in files):
        return PlacedExperiment(spec=spec, start=None)
    here = working_directory.resolve()
    start = here.relative_to(root) if here.is_relative_to(root) else Path()

    def placed(reference: str) -> str:
        file = file_of(reference).resolve()
        _, colon, attribute = reference.partition(":")
        path = os.path.relpath(file, root / start) if file.is_relative_to(root) else file
        return f"{path}{colon}{attribute}"

    def placed_strategy(ref: StrategyRef) -> StrategyRef:
        return replace(ref, name=placed(ref.name)) if ref.is_file else ref

    workloads = (
        replace(ref, reference=placed(ref.reference)) if ref.is_path else ref for ref in spec.workloads
    )
    moved = spec.with_strategies(
        *map(placed_strategy, spec.strategies), baseline=placed_strategy(spec.baseline)
    )
    return PlacedExperiment(spec=moved.model_copy(update={"workloads": tuple(workloads)}), start=start)
