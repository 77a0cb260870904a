"""Cases of an experiment: every combination of its lists, filtered."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from harness.canonical import JsonValue, canonical_hash, slug
from harness.cluster import ClusterShape
from harness.errors import UsageError
from harness.experiment.chosen_strategy import Chosen, choose
from harness.experiment.model import (
    AS_USUAL,
    NO_FAULTS,
    CaseFilter,
    Computation,
    Experiment,
    Scenario,
)
from harness.experiment.references import StrategyRef, WorkloadRef
from harness.records.conditions import AS_WRITTEN, BatchRule, global_examples
from harness.sections import sweeps_of
from harness.written_values import Scalar
from strategies.errors import suggestion
from strategies.plan.execution import Execution

MAX_REPEATS = 10_000
"""Largest number of repeats in an experiment: a night's worth if the shortest takes four seconds."""
CONTROL = "none"
"""Strategy that computes as much as others but sends nothing."""
FUSED = "fused_update"
MERGING = "merge_rows"
TWIN = "aa"
"""Pseudo-parameter in the name of the baseline's second copy."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One strategy for one workload, on one cluster shape, with one way of computing.

    Args:
        id: `<slug>-<8 hex>`, equal for equal cases in any experiment.
        batch_rule: `global` for one batch shared by all replicas, `per-replica` for a batch of each.
        batch_size: requested examples under that rule; None for the workload's own default.
        is_twin: True for the second copy of the baseline in an A/A test.
        computation: precision and compiler of the steps.
        scenario: injected faults.
    """

    id: str
    workload: WorkloadRef
    strategy: StrategyRef
    shape: ClusterShape
    batch_rule: BatchRule = "global"
    batch_size: int | None = None
    is_twin: bool = False
    computation: Computation = AS_USUAL
    scenario: Scenario = NO_FAULTS

    @property
    def title(self) -> str:
        words = (self.workload_name, self.strategy, self.shape.size, self.computation, self.scenario.name)
        return " ".join(text for word in words if (text := str(word)))

    @property
    def chosen(self) -> Chosen:
        params = {name: value for name, value in self.strategy.params.items() if name != TWIN}
        return choose(dataclasses.replace(self.strategy, params=params) if self.is_twin else self.strategy)

    @property
    def workload_name(self) -> str:
        return self.workload.reference


def expand(spec: Experiment) -> tuple[Case, ...]:
    """Cases of an experiment: every combination, filtered, each once.

    Returns:
        Cases by workload, then shape, computation and scenario, then strategy as listed.
    Raises:
        UsageError: the filters leave no case, one of them matches nothing, or there are too many
            combinations.
    """
    _require_few_combinations(spec)
    cases: dict[str, Case] = {}
    unfaulted = next((scenario for scenario in spec.scenarios if not scenario.faults), NO_FAULTS)
    for workload, shape, computation, scenario, strategy in itertools.product(
        spec.workloads, spec.cluster.shapes(), spec.measure.computations, spec.scenarios, spec.strategies
    ):
        # Faults of a worker that sends nothing have no effect.
        own = unfaulted if strategy.name == CONTROL else scenario
        case = _case(workload, strategy, shape, spec.measure.batch, computation, own)
        cases[case.id] = case
    _require_matches(spec, cases.values())
    filtered = tuple(
        case
        for case in cases.values()
        if (not spec.matrix.include or any(matches(item, case) for item in spec.matrix.include))
        and not any(matches(item, case) for item in spec.matrix.exclude)
    )
    if spec.measure.exposed_comm:
        filtered += _missing_controls(filtered)
    if spec.measure.aa:
        filtered += _twins(filtered, spec.baseline)
    if not filtered:
        raise UsageError(
            "must leave at least one case to run, got none; relax include or exclude", field="matrix"
        )
    _require_few_repeats(spec, len(filtered))
    return filtered


def _require_matches(spec: Experiment, cases: Collection[Case]) -> None:
    """Require that each filter matches a case, and names a scenario of the experiment if any."""
    names = [scenario.name for scenario in spec.scenarios]
    for field, filters in (("matrix.include", spec.matrix.include), ("matrix.exclude", spec.matrix.exclude)):
        for index, item in enumerate(filters):
            if item.faults is not None and item.faults not in names:
                hint = suggestion(item.faults, names)
                raise UsageError(
                    f"must be a scenario of faults, got {item.faults!r}; {hint}",
                    field=f"{field}[{index}].faults",
                )
            if not any(matches(item, case) for case in cases):
                raise UsageError("must match at least one case, got none; drop it", field=f"{field}[{index}]")


def _twins(cases: Sequence[Case], baseline: StrategyRef) -> tuple[Case, ...]:
    twins = tuple(_twin(case) for case in cases if case.strategy == baseline)
    if cases and not twins:
        raise UsageError(
            f"must be used with the baseline among the cases, got none of {baseline}; relax include "
            "or exclude",
            field="measure.aa",
        )
    return twins


def matches(item: CaseFilter, case: Case) -> bool:
    """True if a case has everything that a filter requires."""
    return (
        (item.workload is None or _same_workload(item.workload, case.workload))
        and (item.strategy is None or _same_strategy(item.strategy, case.strategy))
        and item.faults in (None, case.scenario.name)
        and all(getattr(case.shape, field) == value for field, value in item.shape.items())
    )


def global_batch(case: Case, default: int) -> int:
    """Examples in one step of all replicas.

    Args:
        case: case with the batch rule.
        default: the workload's own batch size, used if the case has none.
    Raises:
        UsageError: fewer examples than replicas.
    """
    batch_size = default if case.batch_size is None else case.batch_size
    size = global_examples(batch_size, case.batch_rule, case.shape.n_replicas)
    if size < case.shape.n_replicas:
        raise UsageError(
            f"must give each of {case.shape.n_replicas} replicas an example, got {size}; "
            "raise batch_size or lower workers or replicas",
            field=f"{case.workload.reference}.batch_size",
        )
    return size


def _require_few_combinations(spec: Experiment) -> None:
    counts = _counts(spec)
    n_combinations = math.prod(counts.values())
    if n_combinations > MAX_REPEATS:
        product = " x ".join(f"{n:,} {field}" for field, n in counts.items() if n > 1)
        raise UsageError(
            f"must combine to at most {MAX_REPEATS:,} cases, got {product} = {n_combinations:,}; shorten "
            "these lists, or split them into several experiments",
            field="matrix",
        )


def _require_few_repeats(spec: Experiment, n_cases: int) -> None:
    n_repeats = n_cases * spec.measure.repeats
    if n_repeats > MAX_REPEATS:
        raise UsageError(
            f"must be at most {MAX_REPEATS:,} in all, got {spec.measure.repeats:,} measure.repeats x "
            f"{n_cases:,} cases = {n_repeats:,}; lower the repeats, or split the cases into several "
            "experiments",
            field="measure.repeats",
        )


def _counts(spec: Experiment) -> Mapping[str, int]:
    sections = {"cluster": spec.cluster, "cluster.link": spec.cluster.link, "measure": spec.measure}
    return {
        "workloads": len(spec.workloads),
        "strategies": len(spec.strategies),
        **{
            f"{path}.{section.key_of(name)}": len(values)
            for path, section in sections.items()
            for name, values in sweeps_of(section).items()
        },
        "faults": len(spec.scenarios),
    }


def _case(
    workload: WorkloadRef,
    strategy: StrategyRef,
    shape: ClusterShape,
    batch_rule: BatchRule,
    computation: Computation,
    scenario: Scenario = NO_FAULTS,
) -> Case:
    from strategies.registry import ALONE

    # `single` is the same case, whatever shapes the others have.
    alone = strategy.name in ALONE
    case = Case(
        id="",
        workload=workload,
        strategy=strategy,
        shape=shape.of_one_replica() if alone else shape,
        batch_rule=batch_rule,
        batch_size=workload.batch_size,
        computation=computation if shape.hardware == "gpu" else dataclasses.replace(computation, tf32=None),
        # Faults of a single worker have no effect.
        scenario=NO_FAULTS if alone else scenario,
    )
    return dataclasses.replace(case, id=_case_id(case))


def _missing_controls(cases: Sequence[Case]) -> tuple[Case, ...]:
    """Missing controls: one for every case of several replicas; it shows the case's exposed communication.

    It makes its updates as the case does; TensorFlow's own strategies make them as they are written.
    """
    there = {case.id for case in cases}
    controls = [
        _case(
            case.workload,
            StrategyRef(name=CONTROL, params=_update_params(case)),
            case.shape,
            case.batch_rule,
            case.computation,
            next((case.scenario for case in cases if not case.scenario.faults), NO_FAULTS),
        )
        for case in cases
        if case.shape.n_replicas > 1
    ]
    return tuple({control.id: control for control in controls if control.id not in there}.values())


def _update_params(case: Case) -> dict[str, Scalar]:
    fused = {} if Execution.of(case.chosen.params).fused_update else {FUSED: False}
    merging = {name: value for name, value in case.strategy.params.items() if name == MERGING and value}
    return {**fused, **merging}


def _twin(case: Case) -> Case:
    strategy = dataclasses.replace(case.strategy, params={**case.strategy.params, TWIN: True})
    twin = dataclasses.replace(case, strategy=strategy, is_twin=True)
    return dataclasses.replace(twin, id=_case_id(twin))


def _case_id(case: Case) -> str:
    shape, computation = case.shape, case.computation
    facts: dict[str, JsonValue] = {
        "workload": case.workload.reference,
        "workload_params": dict(case.workload.params),
        "strategy": case.strategy.name,
        "strategy_params": dict(case.strategy.params),
        "provider": shape.provider,
        "device": shape.device,
        "workers": shape.workers,
        "replicas": shape.replicas_per_worker,
        "cores_per_worker": shape.cores_per_worker,
        "memory_bytes": shape.memory_bytes,
        "rate_mbit": shape.link.rate_mbit,
        "batch_rule": case.batch_rule,
        **({} if shape.image is None else {"image": shape.image}),
        **({"share_gpus": True} if shape.share_gpus else {}),
        **({} if computation.precision == AS_WRITTEN else {"precision": computation.precision}),
        **({"xla": True} if computation.xla else {}),
        **({"tf32": False} if computation.tf32 is False else {}),
        **({"faults": [dict(f.document()) for f in case.scenario.faults]} if case.scenario.faults else {}),
        **{f"link_{key}": value for key, value in shape.link.other_keys().items()},
    }
    workload, strategy = (_short(name) for name in (case.workload.reference, case.strategy.name))
    return f"{slug(f'{workload}-{strategy}-{shape.size}')}-{canonical_hash(facts)[:8]}"


def _short(reference: str) -> str:
    """A reference without its folder and file name extension."""
    file, _, attribute = reference.partition(":")
    name = PurePath(file).stem if file.endswith((".py", ".json")) else file
    return f"{name}-{attribute}" if attribute else name


def _same_workload(wanted: WorkloadRef, got: WorkloadRef) -> bool:
    return wanted.reference == got.reference and _subset(wanted.params, got.params)


def _same_strategy(wanted: StrategyRef, got: StrategyRef) -> bool:
    return wanted.name == got.name and _subset(wanted.params, got.params)


def _subset(wanted: Mapping[str, Scalar], got: Mapping[str, Scalar]) -> bool:
    return all(key in got and got[key] == value for key, value in wanted.items())
