"""An experiment cut down to one of its cases and the baseline beside it."""

from __future__ import annotations

from dataclasses import fields, replace

from harness.experiment.cases import Case
from harness.experiment.spec import ClusterSpec, ExperimentSpec


def single_case(spec: ExperimentSpec, case: Case) -> ExperimentSpec:
    """The experiment of one case, measured as before, without what is only looked at afterwards.

    Args:
        case: one of the experiment's.
    """
    shape = {item.name: (getattr(case.shape, item.name),) for item in fields(ClusterSpec)}
    return replace(
        spec,
        workloads=(case.workload,),
        strategies=tuple(dict.fromkeys((spec.baseline, case.strategy))),
        cluster=ClusterSpec(**shape),
        measure=replace(
            spec.measure,
            precision=(case.computation.precision,),
            xla=(case.computation.xla,),
            trace=False,
            aa=False,
            observer=False,
            exposed_comm=False,
            evaluate=False,
        ),
        include=(),
        exclude=(),
        scenarios=(case.scenario,),
    )
