"""One case of an experiment: chosen among all, with the experiment that has no other."""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.errors import UsageError
from harness.experiment.cases import Case, expand, matches
from harness.experiment.references import parse_strategy, parse_workload
from harness.experiment.resolve import load_experiment
from harness.experiment.spec import CaseFilter, ClusterSpec, ExperimentSpec
from strategies.errors import suggestion

_N_NAMED = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseRequest:
    """What a test asks for; see `StrategyBenchmark`."""

    experiment: str
    workload: str | None = None
    strategy: str | None = None
    workers: int | None = None
    replicas: int | None = None
    faults: str | None = None
    settings: Mapping[str, object] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class OneCase:
    """A case, and the experiment that has no other but the controls that it is measured beside."""

    case: Case
    spec: ExperimentSpec


def one_case(request: CaseRequest) -> OneCase:
    """Find the case that is asked for.

    Raises:
        UsageError: the experiment cannot be used, or no case of it, or several, are what is asked for.
    """
    spec = _loaded(request)
    # Twins and controls are there for others.
    alone = dataclasses.replace(spec.measure, aa=False, exposed_comm=False, until=None)
    cases = expand(dataclasses.replace(spec, measure=alone))
    matching = _matching(cases, request)
    if len(matching) != 1:
        raise UsageError(
            f"must be one case of {request.experiment}, got {len(matching)}: {_titles(matching)}; give the "
            "workload, strategy, workers, faults or settings of one",
            field="strategy_benchmark",
        )
    (case,) = matching
    return OneCase(case=case, spec=_with_one_case(spec, case))


def with_one_step(spec: ExperimentSpec) -> ExperimentSpec:
    """The experiment as it is only checked: one repeat of one window of one step."""
    measure = dataclasses.replace(
        spec.measure,
        warmup_steps=0,
        steps=1,
        repeats=1,
        rounds=1,
        window_s=0.0,
        trace=False,
        observer=False,
        exposed_comm=False,
        evaluate=False,
    )
    return dataclasses.replace(spec, measure=measure)


def _loaded(request: CaseRequest) -> ExperimentSpec:
    # Text means what it means after --set.
    texts = [f"{path}={value}" for path, value in request.settings.items() if isinstance(value, str)]
    values = {path: value for path, value in request.settings.items() if not isinstance(value, str)}
    shape = {"cluster.workers": request.workers, "cluster.replicas_per_worker": request.replicas}
    given = {path: value for path, value in shape.items() if value is not None}
    spec = load_experiment(
        request.experiment, settings=texts, overrides={**values, **given}, surroundings=os.environ
    )
    return dataclasses.replace(
        spec, include=_possible(spec.include, request), exclude=_possible(spec.exclude, request)
    )


def _possible(filters: tuple[CaseFilter, ...], request: CaseRequest) -> tuple[CaseFilter, ...]:
    """Filters without those for other numbers of workers or replicas; all of them where none is left."""
    asked = {"workers": request.workers, "replicas_per_worker": request.replicas}
    return (
        tuple(item for item in filters if all(asked.get(name) in (None, value) for name, value in item.shape))
        or filters
    )


def _matching(cases: Sequence[Case], request: CaseRequest) -> Sequence[Case]:
    """Cases of a workload and a strategy; those without further parameters where there are such.

    Raises:
        UsageError: there is none.
    """
    matching = cases
    if request.faults is not None:
        having = [case for case in cases if case.scenario.name == request.faults]
        _require(having, "faults", request.faults, [case.scenario.name for case in cases])
        matching = having
    if request.workload is not None:
        workload = parse_workload(request.workload, field="workload")
        having = [case for case in matching if matches(CaseFilter(workload=workload, strategy=None), case)]
        _require(having, "workload", request.workload, [str(case.workload) for case in matching])
        matching = [case for case in having if case.workload == workload] or having
    if request.strategy is not None:
        strategy = parse_strategy(request.strategy, field="strategy")
        having = [case for case in matching if matches(CaseFilter(workload=None, strategy=strategy), case)]
        _require(having, "strategy", request.strategy, [str(case.strategy) for case in matching])
        matching = [case for case in having if case.strategy == strategy] or having
    return matching


def _require(having: Sequence[Case], kind: str, name: str, known: Sequence[str]) -> None:
    if not having:
        hint = suggestion(name, filter(None, dict.fromkeys(known)))
        raise UsageError(f"must be one of the experiment's, got {name!r}; {hint}", field=kind)


def _titles(cases: Sequence[Case]) -> str:
    titles = [case.title for case in cases]
    # Links and devices are no part of a title.
    names = titles if len(set(titles)) == len(titles) else [case.id for case in cases]
    more = f" and {len(names) - _N_NAMED} more" if len(names) > _N_NAMED else ""
    return ", ".join(names[:_N_NAMED]) + more


def _with_one_case(spec: ExperimentSpec, case: Case) -> ExperimentSpec:
    """The experiment without its other cases."""
    measure = dataclasses.replace(spec.measure.of_one(case.computation), aa=False, until=None)
    narrow = dataclasses.replace(
        spec,
        workloads=(case.workload,),
        strategies=(case.strategy,),
        baseline=case.strategy,
        include=(),
        exclude=(),
        measure=measure,
    )
    return next(each for each in _points(narrow) if case.id in {other.id for other in expand(each)})


def _points(spec: ExperimentSpec) -> Iterator[ExperimentSpec]:
    """The experiment at each point of its sweeps of shapes and scenarios."""
    names = [item.name for item in dataclasses.fields(ClusterSpec)]
    sweeps = (getattr(spec.cluster, name) for name in names)
    for values, scenario in itertools.product(itertools.product(*sweeps), spec.scenarios):
        point = {name: (value,) for name, value in zip(names, values, strict=True)}
        yield dataclasses.replace(spec, cluster=ClusterSpec(**point), scenarios=(scenario,))
