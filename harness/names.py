"""Check the names and parameters of an experiment against the registries, before anything is started."""

from __future__ import annotations

from collections.abc import Sequence

from harness.chosen import choose
from harness.errors import UsageError
from harness.options import Target
from harness.refs import StrategyRef, WorkloadRef
from harness.spec import ExperimentSpec


def check_experiment(spec: ExperimentSpec) -> None:
    """Check every workload and strategy of an experiment.

    Raises:
        UsageError: for the first that is not known or has a wrong parameter, with its place in the list.
    """
    for index, workload in enumerate(spec.workloads):
        _check_workload(workload, field=f"workloads[{index}]")
    _check_strategies(spec.strategies)


def check_target(target: Target) -> None:
    """Check the workload and strategy of one command.

    Raises:
        UsageError: when one is not known or has a wrong parameter.
    """
    _check_workload(target.workload, field="workload")
    choose(target.strategy, field="strategy")


def _check_workload(ref: WorkloadRef, *, field: str) -> None:
    from workloads import registry
    from workloads.errors import WorkloadError

    try:
        registry.check(ref.reference, ref.params)
    except WorkloadError as error:
        raise UsageError(str(error), field=field) from None


def _check_strategies(refs: Sequence[StrategyRef]) -> None:
    references: dict[str, str] = {}
    for index, ref in enumerate(refs):
        field = f"strategies[{index}]"
        name = choose(ref, field=field).strategy.name
        other = references.setdefault(name, ref.name)
        if other != ref.name:
            raise UsageError(
                f"{ref.name} must have a name that no other strategy has, got {name!r}, which {other} has "
                "too; rename one",
                field=field,
            )
