"""From an experiment to its cases, and from cases to the order in which their repeats run."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from harness.canonical import JsonValue, canonical_hash, slug
from harness.cluster.link_limits import other_keys
from harness.cluster.shape import ClusterShape
from harness.errors import UsageError
from harness.experiment.chosen_strategy import Chosen, choose
from harness.experiment.references import Scalar, StrategyRef, WorkloadRef
from harness.experiment.size import require_few_combinations, require_few_repeats
from harness.experiment.spec import (
    AS_USUAL,
    NO_FAULTS,
    BatchRule,
    CaseFilter,
    ClusterSpec,
    Computation,
    ExperimentSpec,
    Scenario,
)
from harness.records.facts.circumstances import AS_WRITTEN
from strategies.errors import suggestion
from strategies.plan.execution import Execution

_BATCH_SIZE = "batch_size"
CONTROL = "none"
"""The strategy that computes as much as others and sends nothing."""
FUSED = "fused_update"
MERGING = "merge_rows"
TWIN = "aa"
"""In place of a parameter, in the name of a case that is the baseline once more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One strategy for one workload on one shape of one provider, computed in one way.

    Args:
        id: `<slug>-<8 hex>`, equal for equal cases in any experiment.
        batch_rule: whether the batch asked for is the global one or that of each replica.
        batch_size: examples asked for under that rule; None for the workload's own default.
        is_twin: the baseline once more, under a name of its own.
        computation: how its steps compute.
        scenario: what goes wrong with its workers.
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
        """As a person is told of it."""
        words = (self.workload_name, self.strategy, self.shape.size, self.computation, self.scenario.name)
        return " ".join(text for word in words if (text := str(word)))

    @property
    def chosen(self) -> Chosen:
        """The strategy that its reference stands for.

        Raises:
            UsageError: as `choose`, which `preflight` has asked before.
        """
        params = {name: value for name, value in self.strategy.params.items() if name != TWIN}
        return choose(dataclasses.replace(self.strategy, params=params) if self.is_twin else self.strategy)

    @property
    def workload_name(self) -> str:
        """The workload's name in records: as registered, or the reference to the file."""
        return self.workload.reference


def expand(spec: ExperimentSpec) -> tuple[Case, ...]:
    """Make the cases of an experiment: every combination, filtered, each once.

    Returns:
        Cases by workload, then shape, computation and scenario, then strategy as listed.
    Raises:
        UsageError: when the filters leave nothing, one of them matches nothing, or there is more than a
            night can run.
    """
    require_few_combinations(spec)
    cases: dict[str, Case] = {}
    unfaulted = next((each for each in spec.scenarios if not each.faults), NO_FAULTS)
    for workload, shape, computation, scenario, strategy in itertools.product(
        spec.workloads, _shapes(spec), spec.measure.computations, spec.scenarios, spec.strategies
    ):
        # Nobody hears of the faults of a worker that sends nothing.
        own = unfaulted if strategy.name == CONTROL else scenario
        case = _case(workload, strategy, shape, spec.measure.batch, computation, own)
        cases[case.id] = case
    for field, filters in (("matrix.include", spec.include), ("matrix.exclude", spec.exclude)):
        for index, item in enumerate(filters):
            names = [scenario.name for scenario in spec.scenarios]
            if item.scenario is not None and item.scenario not in names:
                hint = suggestion(item.scenario, names)
                raise UsageError(
                    f"must be a scenario of faults, got {item.scenario!r}; {hint}",
                    field=f"{field}[{index}].faults",
                )
            if not any(matches(item, case) for case in cases.values()):
                raise UsageError("must match at least one case, got none; drop it", field=f"{field}[{index}]")
    kept = tuple(
        case
        for case in cases.values()
        if (not spec.include or any(matches(item, case) for item in spec.include))
        and not any(matches(item, case) for item in spec.exclude)
    )
    if spec.measure.exposed_comm:
        kept += _missing_controls(kept)
    if spec.measure.aa:
        twins = tuple(_twin(case) for case in kept if case.strategy == spec.baseline)
        if kept and not twins:
            raise UsageError(
                f"must be used with the baseline among the cases, got none of {spec.baseline}; relax include "
                "or exclude",
                field="measure.aa",
            )
        kept += twins
    if not kept:
        raise UsageError(
            "must leave at least one case to run, got none; relax include or exclude", field="matrix"
        )
    require_few_repeats(spec, len(kept))
    return kept


def matches(item: CaseFilter, case: Case) -> bool:
    """Whether a case has everything that a filter names."""
    return (
        (item.workload is None or _same_workload(item.workload, case.workload))
        and (item.strategy is None or _same_strategy(item.strategy, case.strategy))
        and item.scenario in (None, case.scenario.name)
        and all(getattr(case.shape, field) == value for field, value in item.shape)
    )


def global_batch(case: Case, default: int) -> int:
    """Examples in one step of all replicas.

    Args:
        case: its rule says whether a batch is shared by the replicas or each has its own.
        default: the workload's own batch size, used where the case has none.
    Raises:
        UsageError: fewer examples than replicas.
    """
    asked = default if case.batch_size is None else case.batch_size
    size = asked * case.shape.n_replicas if case.batch_rule == "per-replica" else asked
    if size < case.shape.n_replicas:
        raise UsageError(
            f"must give each of {case.shape.n_replicas} replicas an example, got {size}; "
            "raise batch_size or lower workers or replicas",
            field=f"{case.workload.reference}.batch_size",
        )
    return size


def _shapes(spec: ExperimentSpec) -> Iterator[ClusterShape]:
    """Take a cluster's sweeps apart into shapes."""
    names = [item.name for item in dataclasses.fields(ClusterSpec)]
    for values in itertools.product(*(getattr(spec.cluster, name) for name in names)):
        shape = ClusterShape(**dict(zip(names, values, strict=True)), connection=spec.connection)
        there = tuple(link for link in shape.worker_links if link[0] < shape.workers)
        yield dataclasses.replace(shape, worker_links=there)


def _case(
    workload: WorkloadRef,
    strategy: StrategyRef,
    shape: ClusterShape,
    batch_rule: BatchRule,
    computation: Computation,
    scenario: Scenario = NO_FAULTS,
) -> Case:
    from strategies.registry import STRATEGIES

    # `single` is the same case whatever shape the others have.
    alone = strategy.name in {each.name for each in STRATEGIES if each.single}
    batch_size = workload.params.get(_BATCH_SIZE)
    case = Case(
        id="",
        workload=workload,
        strategy=strategy,
        shape=shape.of_one_replica() if alone else shape,
        batch_rule=batch_rule,
        batch_size=batch_size if isinstance(batch_size, int) else None,
        computation=computation if shape.hardware == "gpu" else dataclasses.replace(computation, tf32=None),
        # Nobody hears of the faults of a worker that is alone.
        scenario=NO_FAULTS if alone else scenario,
    )
    return dataclasses.replace(case, id=_case_id(case))


def _missing_controls(cases: Sequence[Case]) -> tuple[Case, ...]:
    """The control of every case of several replicas that has none: what it lacks says what others expose.

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
            next((each.scenario for each in cases if not each.scenario.faults), NO_FAULTS),
        )
        for case in cases
        if case.shape.n_replicas > 1
    ]
    return tuple({control.id: control for control in controls if control.id not in there}.values())


def _update_params(case: Case) -> dict[str, Scalar]:
    """Parameters with which a control makes its updates as a case does."""
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
        "rate_mbit": shape.rate_mbit,
        "batch_rule": case.batch_rule,
        **({} if shape.image is None else {"image": shape.image}),
        **({"share_gpus": True} if shape.share_gpus else {}),
        **({} if computation.precision == AS_WRITTEN else {"precision": computation.precision}),
        **({"xla": True} if computation.xla else {}),
        **({"tf32": False} if computation.tf32 is False else {}),
        **({"faults": [dict(f.document()) for f in case.scenario.faults]} if case.scenario.faults else {}),
        **{f"link_{key}": value for key, value in other_keys(shape.burst_kb, shape.worker_links).items()},
    }
    workload, strategy = (_short(name) for name in (case.workload.reference, case.strategy.name))
    return f"{slug(f'{workload}-{strategy}-{shape.size}')}-{canonical_hash(facts)[:8]}"


def _short(reference: str) -> str:
    """A reference without its folder and the file's ending."""
    file, _, attribute = reference.partition(":")
    name = PurePath(file).stem if file.endswith((".py", ".json")) else file
    return f"{name}-{attribute}" if attribute else name


def _same_workload(wanted: WorkloadRef, got: WorkloadRef) -> bool:
    return wanted.reference == got.reference and _subset(wanted.params, got.params)


def _same_strategy(wanted: StrategyRef, got: StrategyRef) -> bool:
    return wanted.name == got.name and _subset(wanted.params, got.params)


def _subset(wanted: Mapping[str, Scalar], got: Mapping[str, Scalar]) -> bool:
    return all(key in got and got[key] == value for key, value in wanted.items())
