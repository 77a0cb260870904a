"""Check the names and parameters of an experiment against the registries, before anything is started."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from harness.errors import UsageError
from harness.experiment.chosen_strategy import choose
from harness.experiment.model import Experiment
from harness.experiment.references import WorkloadRef
from harness.requests import Target
from strategies.errors import StrategyError
from strategies.plan.aggregation import Aggregation

if TYPE_CHECKING:
    from strategies.user_strategies import EditedPlan


def check_experiment(spec: Experiment) -> None:
    """Check every workload and strategy of an experiment, and its workers against its TPU slice.

    Raises:
        UsageError: a workload or strategy is unknown or has a wrong parameter (the field names its place in
                the list), the slice does not exist, or it has fewer hosts than there are workers.
    """
    for index, workload in enumerate(spec.workloads):
        _check_workload(workload, field=f"workloads[{index}]")
    _check_strategies(spec)
    if spec.cluster.slice is not None:
        from harness.provision.cluster.tpu_slices import require_hosts

        require_hosts(spec.cluster.slice, spec.cluster.workers, spec.cluster.replicas_per_worker)


def check_target(target: Target) -> None:
    """Check the workload and strategy of one command.

    Raises:
        UsageError: one is unknown or has a wrong parameter, or workers are too few for its aggregation rule.
    """
    _check_workload(target.workload, field="workload")
    chosen = choose(target.strategy, field="strategy")
    edited = chosen.edited
    try:
        Aggregation.of(chosen.params, target.workers)
    except StrategyError as error:
        raise UsageError(str(error), field="strategy") from error
    refusal = edited and edited.refusal(target.workload.reference, (target.replicas,) * target.workers)
    if refusal:
        raise UsageError(refusal, field="strategy")


def _check_workload(ref: WorkloadRef, *, field: str) -> None:
    from workloads import registry
    from workloads.protocol import WorkloadError

    try:
        registry.check(ref.reference, ref.params)
    except WorkloadError as error:
        raise UsageError(str(error), field=field) from None


def _check_strategies(spec: Experiment) -> None:
    references: dict[str, str] = {}
    for index, ref in enumerate(spec.strategies):
        field = f"strategies[{index}]"
        chosen = choose(ref, field=field)
        if chosen.edited is not None:
            _check_plan(chosen.edited, spec, field=field)
        name = chosen.strategy.name
        other = references.setdefault(name, ref.name)
        if other != ref.name:
            raise UsageError(
                f"{ref.name} must have a name that no other strategy has, got {name!r}, which {other} has "
                "too; rename one",
                field=field,
            )


def _check_plan(edited: EditedPlan, spec: Experiment, *, field: str) -> None:
    """Require a case for a plan; cases of other workloads and shapes are skipped later."""
    refusals = [
        edited.refusal(workload.reference, (replicas,) * workers)
        for workload, workers, replicas in itertools.product(
            spec.workloads, spec.cluster.workers, spec.cluster.replicas_per_worker
        )
    ]
    if None not in refusals:
        raise UsageError(str(refusals[0]), field=field)
