"""One case of an experiment, selected for a test."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.errors import UsageError
from harness.experiment.cases import Case, expand, matches
from harness.experiment.load import load_experiment
from harness.experiment.model import CaseFilter, Experiment
from harness.experiment.references import parse_strategy, parse_workload
from strategies.errors import suggestion

_N_NAMED = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseRequest:
    """Request of a test for a case; see `StrategyBenchmark`."""

    experiment: str
    workload: str | None = None
    strategy: str | None = None
    workers: int | None = None
    replicas: int | None = None
    faults: str | None = None
    settings: Mapping[str, object] = dataclasses.field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class OneCase:
    """A case, and the experiment reduced to it and its controls."""

    case: Case
    spec: Experiment


def one_case(request: CaseRequest) -> OneCase:
    """Find the requested case.

    Raises:
        UsageError: the experiment cannot be used, or none or several of its cases match.
    """
    spec = _loaded(request)
    # Twins and controls only accompany other cases.
    cases = expand(_measured(spec, aa=False, exposed_comm=False, until=None))
    matching = _matching(cases, request)
    if len(matching) != 1:
        raise UsageError(
            f"must be one case of {request.experiment}, got {len(matching)}: {_titles(matching)}; give the "
            "workload, strategy, workers, faults or settings of one",
            field="strategy_benchmark",
        )
    (case,) = matching
    return OneCase(case=case, spec=_with_one_case(spec, case))


def with_one_step(spec: Experiment) -> Experiment:
    """The experiment reduced to its check: one repeat of one window of one step."""
    return _measured(
        spec,
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


def _measured(spec: Experiment, **values: object) -> Experiment:
    return spec.model_copy(update={"measure": spec.measure.model_copy(update=values)})


def _loaded(request: CaseRequest) -> Experiment:
    # Text has the same meaning as after --set.
    texts = [f"{path}={value}" for path, value in request.settings.items() if isinstance(value, str)]
    values = {path: value for path, value in request.settings.items() if not isinstance(value, str)}
    shape = {"cluster.workers": request.workers, "cluster.replicas_per_worker": request.replicas}
    overrides = {**values, **{path: value for path, value in shape.items() if value is not None}}
    spec = load_experiment(request.experiment, settings=texts, overrides=overrides, surroundings=os.environ)
    if request.workload is not None:
        workload = parse_workload(request.workload, field="workload")
        listed = {listed.reference for listed in spec.workloads}
        # A user's file need not be one of the experiment's workloads.
        if workload.is_path and workload.reference not in listed:
            replaced = {**overrides, "workloads": [request.workload]}
            spec = load_experiment(
                request.experiment, settings=texts, overrides=replaced, surroundings=os.environ
            )
    filters = {
        # Without any, all cases would be included.
        "include": _possible(spec.matrix.include, request) or spec.matrix.include,
        "exclude": _possible(spec.matrix.exclude, request),
    }
    return spec.model_copy(update={"matrix": spec.matrix.model_copy(update=filters)})


def _possible(filters: tuple[CaseFilter, ...], request: CaseRequest) -> tuple[CaseFilter, ...]:
    """Filters without those for other numbers of workers or replicas."""
    wanted = {"workers": request.workers, "replicas_per_worker": request.replicas}
    return tuple(
        item
        for item in filters
        if all(wanted.get(name) in (None, value) for name, value in item.shape.items())
    )


def _matching(cases: Sequence[Case], request: CaseRequest) -> Sequence[Case]:
    if request.faults is not None:
        named = [case for case in cases if case.scenario.name == request.faults]
        _require(named, "faults", request.faults, [case.scenario.name for case in cases])
        cases = named
    if request.workload is not None:
        workload = parse_workload(request.workload, field="workload")
        named = [case for case in cases if matches(CaseFilter(workload=workload), case)]
        _require(named, "workload", request.workload, [str(case.workload) for case in cases])
        cases = [case for case in named if case.workload == workload] or named
    if request.strategy is not None:
        strategy = parse_strategy(request.strategy, field="strategy")
        named = [case for case in cases if matches(CaseFilter(strategy=strategy), case)]
        _require(named, "strategy", request.strategy, [str(case.strategy) for case in cases])
        cases = [case for case in named if case.strategy == strategy] or named
    return cases


def _require(matching: Sequence[Case], field: str, name: str, known: Sequence[str]) -> None:
    if not matching:
        hint = suggestion(name, filter(None, dict.fromkeys(known)))
        raise UsageError(f"must be one of the experiment's, got {name!r}; {hint}", field=field)


def _titles(cases: Sequence[Case]) -> str:
    titles = [case.title for case in cases]
    # Links and devices are not part of a title.
    names = titles if len(set(titles)) == len(titles) else [case.id for case in cases]
    more = f" and {len(names) - _N_NAMED} more" if len(names) > _N_NAMED else ""
    return ", ".join(names[:_N_NAMED]) + more


def _with_one_case(spec: Experiment, case: Case) -> Experiment:
    alone = spec.with_strategies(case.strategy, baseline=case.strategy)
    alone = alone.of_one(case.shape, case.computation, case.scenario)
    alone = alone.model_copy(update={"workloads": (case.workload,)})
    return _measured(alone, aa=False, until=None)
