"""From an experiment to its cases, and from cases to the order in which their repeats run."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

from harness.canonical import JsonValue, canonical_hash, slug
from harness.cluster.link_limits import Limits, WorkerLinks, limits_of, other_keys
from harness.errors import UsageError
from harness.experiment.chosen_strategy import Chosen, choose
from harness.experiment.references import Scalar, StrategyRef, WorkloadRef
from harness.experiment.size import require_few_combinations, require_few_repeats
from harness.experiment.spec import BatchRule, CaseFilter, ClusterSpec, ExperimentSpec

if TYPE_CHECKING:
    from harness.cluster.providers import Device

_BATCH_SIZE = "batch_size"


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """Workers of one kind, as one provider has them; cores and memory of each.

    Attributes:
        replicas: devices of each worker; None for CPUs, which replicas share. Workers keep their devices from
            case to case, so that the largest shape in workers and the largest in replicas would take together
            more than any case needs.
    """

    provider: str
    device: Device
    replicas: int | None
    cores_per_worker: int
    memory_bytes: int
    image: str | None


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One strategy for one workload on one shape of one provider.

    Args:
        id: `<slug>-<8 hex>`, equal for equal cases in any experiment.
        workers: worker processes.
        replicas: per worker.
        memory_bytes: per worker.
        batch_rule: whether the batch asked for is the global one or that of each replica.
        batch_size: examples asked for under that rule; None for the workload's own default.
        image: of containers, None for the provider's own.
        rate_mbit, burst_kb: limit of each worker's link, None for no limit and for a burst that suits it.
        worker_links: links with a limit of their own.
    """

    id: str
    workload: WorkloadRef
    strategy: StrategyRef
    provider: str
    device: Device
    workers: int
    replicas: int
    cores_per_worker: int
    memory_bytes: int
    rate_mbit: float | None
    batch_rule: BatchRule
    batch_size: int | None
    image: str | None = None
    burst_kb: int | None = None
    worker_links: WorkerLinks = ()

    @property
    def links(self) -> Limits:
        """Limits of the workers' links, in worker order."""
        return limits_of(self.rate_mbit, self.burst_kb, self.worker_links, self.workers)

    @property
    def n_replicas(self) -> int:
        """N, replicas in all."""
        return self.workers * self.replicas

    @property
    def chosen(self) -> Chosen:
        """The strategy that its reference stands for.

        Raises:
            UsageError: as `choose`, which `preflight` has asked before.
        """
        return choose(self.strategy)

    @property
    def workload_name(self) -> str:
        """The workload's name in records: as registered, or the reference to the file."""
        return self.workload.reference

    @property
    def site(self) -> Site:
        """What cases must share to run on the same workers."""
        return Site(
            provider=self.provider,
            device=self.device,
            replicas=None if self.device == "cpu" else self.replicas,
            cores_per_worker=self.cores_per_worker,
            memory_bytes=self.memory_bytes,
            image=self.image,
        )


def expand(spec: ExperimentSpec) -> tuple[Case, ...]:
    """Make the cases of an experiment: every combination, filtered, each once.

    Returns:
        Cases by workload, then shape, then strategy as listed.
    Raises:
        UsageError: when the filters leave nothing, one of them matches nothing, or there is more than a
            night can run.
    """
    require_few_combinations(spec)
    cases: dict[str, Case] = {}
    for workload, shape, strategy in itertools.product(
        spec.workloads, _shapes(spec.cluster), spec.strategies
    ):
        case = _case(workload, strategy, shape, spec.measure.batch)
        cases[case.id] = case
    for field, filters in (("matrix.include", spec.include), ("matrix.exclude", spec.exclude)):
        for index, item in enumerate(filters):
            if not any(matches(item, case) for case in cases.values()):
                raise UsageError("must match at least one case, got none; drop it", field=f"{field}[{index}]")
    kept = tuple(
        case
        for case in cases.values()
        if (not spec.include or any(matches(item, case) for item in spec.include))
        and not any(matches(item, case) for item in spec.exclude)
    )
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
        and item.provider in (None, case.provider)
        and item.device in (None, case.device)
        and item.workers in (None, case.workers)
        and item.replicas_per_worker in (None, case.replicas)
        and item.cores_per_worker in (None, case.cores_per_worker)
        and item.memory_per_worker_bytes in (None, case.memory_bytes)
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
    size = asked * case.n_replicas if case.batch_rule == "per-replica" else asked
    if size < case.n_replicas:
        raise UsageError(
            f"must give each of {case.n_replicas} replicas an example, got {size}; "
            "raise batch_size or lower workers or replicas",
            field=f"{case.workload.reference}.batch_size",
        )
    return size


def _shapes(cluster: ClusterSpec) -> Iterator[ClusterSpec]:
    """Take a cluster's sweeps apart into clusters of one value each."""
    names = [item.name for item in dataclasses.fields(ClusterSpec)]
    for values in itertools.product(*(getattr(cluster, name) for name in names)):
        yield dataclasses.replace(
            cluster, **{name: (value,) for name, value in zip(names, values, strict=True)}
        )


def _case(workload: WorkloadRef, strategy: StrategyRef, shape: ClusterSpec, batch_rule: BatchRule) -> Case:
    from strategies.planning.registry import STRATEGIES

    # One device has no one to share with: `single` is the same case whatever shape the others have.
    alone = strategy.name in {each.name for each in STRATEGIES if each.single}
    batch_size = workload.params.get(_BATCH_SIZE)
    case = Case(
        id="",
        workload=workload,
        strategy=strategy,
        provider=shape.provider[0],
        device=shape.device[0],
        workers=1 if alone else shape.workers[0],
        replicas=1 if alone else shape.replicas_per_worker[0],
        cores_per_worker=shape.cores_per_worker[0],
        memory_bytes=shape.memory_per_worker_bytes[0],
        rate_mbit=None if alone else shape.rate_mbit[0],
        batch_rule=batch_rule,
        batch_size=batch_size if isinstance(batch_size, int) else None,
        image=shape.image[0],
        burst_kb=None if alone else shape.burst_kb[0],
        worker_links=()
        if alone
        else tuple(item for item in shape.worker_links[0] if item[0] < shape.workers[0]),
    )
    return dataclasses.replace(case, id=_case_id(case))


def _case_id(case: Case) -> str:
    facts: dict[str, JsonValue] = {
        "workload": case.workload.reference,
        "workload_params": dict(case.workload.params),
        "strategy": case.strategy.name,
        "strategy_params": dict(case.strategy.params),
        "provider": case.provider,
        "device": case.device,
        "workers": case.workers,
        "replicas": case.replicas,
        "cores_per_worker": case.cores_per_worker,
        "memory_bytes": case.memory_bytes,
        "rate_mbit": case.rate_mbit,
        "batch_rule": case.batch_rule,
        **({} if case.image is None else {"image": case.image}),
        **{f"link_{key}": value for key, value in other_keys(case.burst_kb, case.worker_links).items()},
    }
    workload, strategy = (_short(name) for name in (case.workload.reference, case.strategy.name))
    return f"{slug(f'{workload}-{strategy}-{case.workers}x{case.replicas}')}-{canonical_hash(facts)[:8]}"


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
