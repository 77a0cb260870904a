"""An experiment as frozen values: what to run, where, and how to measure it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeVar

from harness import links
from harness.canonical import JsonValue, canonical_hash
from harness.errors import UsageError
from harness.provision.connection import NO_CLUSTER, Connection, Slice
from harness.refs import StrategyRef, WorkloadRef, strategy_from, workload_from

if TYPE_CHECKING:
    from harness.spec_model import CheckpointSection, ClusterSection, ExperimentModel, FilterSection

BatchRule = Literal["global", "per-replica"]

_T = TypeVar("_T")
_AROUND_KEYS = ("address", "token_file", "data_network", "placement")
_CONNECTION_KEYS = (*_AROUND_KEYS, "slice")
_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10))


@dataclass(frozen=True, kw_only=True, slots=True)
class Cluster:
    """Where cases run and their shapes; every value is a sweep of one or more."""

    provider: tuple[str, ...]
    workers: tuple[int, ...]
    replicas_per_worker: tuple[int, ...]
    device: tuple[str, ...]
    cores_per_worker: tuple[int, ...]
    memory_per_worker_bytes: tuple[int, ...]
    image: tuple[str | None, ...]
    rate_mbit: tuple[float | None, ...]
    burst_kb: tuple[int | None, ...] = (None,)
    worker_links: tuple[links.WorkerLinks, ...] = ((),)

    @property
    def shapes_links(self) -> bool:
        """Whether the link of any worker of any case is limited."""
        (different,) = self.worker_links
        return any(rate is not None for rate in (*self.rate_mbit, *(link.rate_mbit for _, link in different)))


@dataclass(frozen=True, kw_only=True, slots=True)
class Measure:
    """How each case is timed; `warmup_steps` None means detected, `trace` asks for a traced step after it."""

    warmup_steps: int | None
    steps: int
    repeats: int
    interleave: bool
    seed: int
    batch: BatchRule
    trace: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class CaseFilter:
    """What a case must have to match; None matches all, parameters given must be among the case's."""

    workload: WorkloadRef | None = None
    strategy: StrategyRef | None = None
    provider: str | None = None
    workers: int | None = None
    replicas_per_worker: int | None = None
    device: str | None = None
    cores_per_worker: int | None = None
    memory_per_worker_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Checkpoints:
    """Whether each repeat's last state is saved, and the checkpoint that all repeats begin with, if any."""

    save: bool = False
    restore: Path | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class ExperimentSpec:
    """A resolved experiment.

    Args:
        baseline: the strategy that others are compared with; one of `strategies`.
        connection: to the Ray cluster of the cluster provider.
        notes: one line each, what resolving changed and the person should know; not part of the experiment.
    """

    name: str
    workloads: tuple[WorkloadRef, ...]
    strategies: tuple[StrategyRef, ...]
    cluster: Cluster
    measure: Measure
    include: tuple[CaseFilter, ...]
    exclude: tuple[CaseFilter, ...]
    baseline: StrategyRef
    checkpoint: Checkpoints = Checkpoints()
    connection: Connection = NO_CLUSTER
    notes: tuple[str, ...] = ()

    @property
    def spec_hash(self) -> str:
        """Canonical hash of the resolved experiment; 64 hex digits, equal for equal experiments."""
        return canonical_hash(self.to_document())

    def to_document(self) -> dict[str, JsonValue]:
        """Write the experiment as a file that resolves to the same experiment."""
        return {
            "name": self.name,
            "workloads": [_ref_document(ref.reference, ref.params) for ref in self.workloads],
            "strategies": [_ref_document(ref.name, ref.params) for ref in self.strategies],
            "cluster": {
                "provider": _sweep_document(self.cluster.provider),
                "workers": _sweep_document(self.cluster.workers),
                "replicas_per_worker": _sweep_document(self.cluster.replicas_per_worker),
                "device": _sweep_document(self.cluster.device),
                "cores_per_worker": _sweep_document(self.cluster.cores_per_worker),
                "memory_per_worker": _sweep_document(
                    tuple(_size_text(size) for size in self.cluster.memory_per_worker_bytes)
                ),
                # Runs from before there was a choice keep their hash.
                **({} if self.cluster.image == (None,) else {"image": _sweep_document(self.cluster.image)}),
                "link": {
                    "rate_mbit": _sweep_document(self.cluster.rate_mbit),
                    **links.other_keys(self.cluster.burst_kb[0], self.cluster.worker_links[0]),
                },
                **_connection_document(self.connection),
            },
            "measure": {
                "warmup_steps": "auto" if self.measure.warmup_steps is None else self.measure.warmup_steps,
                "steps": self.measure.steps,
                "repeats": self.measure.repeats,
                "interleave": self.measure.interleave,
                "seed": self.measure.seed,
                "batch": self.measure.batch,
                # Runs from before there were traces keep their hash.
                **({} if self.measure.trace else {"trace": False}),
            },
            "matrix": {
                "include": [_filter_document(item) for item in self.include],
                "exclude": [_filter_document(item) for item in self.exclude],
            },
            "compare": {"baseline": str(self.baseline)},
            # Runs from before there were checkpoints keep their hash.
            **({} if self.checkpoint == Checkpoints() else {"checkpoint": self._checkpoint_document()}),
        }

    def _checkpoint_document(self) -> JsonValue:
        restore = self.checkpoint.restore
        return {"save": self.checkpoint.save, "restore": None if restore is None else str(restore)}


def load_experiment(
    experiment: str,
    *,
    settings: Sequence[str] = (),
    overrides: Mapping[str, object] | None = None,
    plan: str | None = None,
    surroundings: Mapping[str, str] | None = None,
) -> ExperimentSpec:
    """Find, read, override and resolve an experiment.

    Args:
        experiment: a path, or the name of a shipped file.
        settings: `dotted.path=value` each, as given with --set; laid over the file.
        overrides: dotted path → value from other options; laid over the settings.
        plan: path of an edited plan to run beside the strategies.
        surroundings: environment variables, which name the cluster that this process is a part of.
    Raises:
        UsageError: for anything wrong in the file or the options, with the path of the field.
    """
    # YAML and pydantic are only needed once a file is read.
    from harness import experiment_file

    document = experiment_file.read(experiment_file.find(experiment))
    values = dict(experiment_file.parse_setting(text) for text in settings)
    values.update(overrides or {})
    document = experiment_file.overlay(document, values)
    document = experiment_file.overlay(document, _cluster_around(document, surroundings or {}))
    if plan is not None:
        listed = document.get("strategies", [])
        document["strategies"] = [*(listed if isinstance(listed, list) else [listed]), plan]
    return resolve(document, strategies_replaced=any(path.split(".")[0] == "strategies" for path in values))


def resolve(document: Mapping[str, object], *, strategies_replaced: bool = False) -> ExperimentSpec:
    """Resolve an experiment document.

    Args:
        document: the file's content.
        strategies_replaced: whether the file's own list was replaced, so that its baseline may be gone.
    Raises:
        UsageError: for the first thing wrong, with its dotted path.
    """
    from harness.spec_model import validate

    model = validate(document)
    strategies = _unique(
        [strategy_from(item, field=f"strategies[{index}]") for index, item in enumerate(model.strategies)]
    )
    baseline, notes = _baseline(model, strategies, replaced=strategies_replaced)
    workloads = _unique(_workloads(model.workloads))
    connection = _connection(model)
    if connection.address is not None:
        _refuse_absolute(workloads)
    return ExperimentSpec(
        name=model.name,
        workloads=workloads,
        strategies=strategies,
        cluster=_cluster(model.cluster),
        measure=Measure(
            warmup_steps=None if model.measure.warmup_steps == "auto" else model.measure.warmup_steps,
            steps=model.measure.steps,
            repeats=model.measure.repeats,
            interleave=model.measure.interleave,
            seed=model.measure.seed,
            batch=model.measure.batch,
            trace=model.measure.trace,
        ),
        include=_filters(model.matrix.include, "matrix.include"),
        exclude=_filters(model.matrix.exclude, "matrix.exclude"),
        baseline=baseline,
        checkpoint=_checkpoints(model.checkpoint),
        connection=connection,
        notes=notes,
    )


def _workloads(items: Sequence[object]) -> list[WorkloadRef]:
    found = []
    for index, item in enumerate(items):
        ref = workload_from(item, field=f"workloads[{index}]")
        batch_size = ref.params.get("batch_size", 1)
        if isinstance(batch_size, bool) or not isinstance(batch_size, int) or batch_size < 1:
            raise UsageError(
                f"must be a whole number of examples, at least 1, got {batch_size!r}",
                field=f"workloads[{index}].batch_size",
            )
        found.append(ref)
    return found


def _cluster(section: ClusterSection) -> Cluster:
    cluster = Cluster(
        provider=_unique(section.provider),
        workers=_unique(section.workers),
        replicas_per_worker=_unique(section.replicas_per_worker),
        device=_unique(section.device),
        cores_per_worker=_unique(section.cores_per_worker),
        memory_per_worker_bytes=_unique(section.memory_per_worker),
        image=_unique(section.image),
        rate_mbit=_unique(section.link.rate_mbit),
        burst_kb=(section.link.burst_kb,),
        worker_links=(
            tuple(
                (worker, links.WorkerLink(rate_mbit=link.rate_mbit, burst_kb=link.burst_kb))
                for worker, link in sorted(section.link.workers.items())
            ),
        ),
    )
    _refuse_devices(cluster)
    _refuse_links(cluster)
    return cluster


def _refuse_devices(cluster: Cluster) -> None:
    """Refuse devices that a provider's workers cannot have."""
    from harness.provision.registry import PROVIDERS

    for name in cluster.provider:
        able = PROVIDERS[name].devices
        unable = [device for device in cluster.device if device not in able]
        if unable:
            raise UsageError(
                f"must be {' or '.join(map(repr, able))} with the provider {name}, got {unable[0]!r}",
                field="cluster.device",
            )


def _refuse_links(cluster: Cluster) -> None:
    """Refuse limits of links that no case can have."""
    from harness.provision.registry import PROVIDERS

    unable = [name for name in cluster.provider if not PROVIDERS[name].shapes_links]
    if unable and cluster.shapes_links:
        able = " or ".join(name for name, provider in PROVIDERS.items() if provider.shapes_links)
        raise UsageError(
            f"must be null with the provider {unable[0]}, which cannot limit links; use --provider {able}",
            field="cluster.link.rate_mbit",
        )
    n_workers = max(cluster.workers)
    for worker, _ in cluster.worker_links[0]:
        if worker >= n_workers:
            raise UsageError(
                f"must be a worker's number, 0 to {n_workers - 1}, got {worker}; workers are counted from 0",
                field="cluster.link.workers",
            )


def _connection(model: ExperimentModel) -> Connection:
    section = model.cluster
    found = Connection(
        address=section.address,
        token_file=None if section.token_file is None else Path(section.token_file).absolute(),
        data_network=section.data_network,
        placement=section.placement,
        slice=None
        if section.slice is None
        else Slice(accelerator=section.slice.accelerator, topology=section.slice.topology),
    )
    if "cluster" in section.provider and len(set(section.provider)) > 1:
        # Ray reads one token for each process, and every other provider makes its own.
        raise UsageError(
            f"cluster must be the only provider of an experiment, got {', '.join(section.provider)}; run it "
            "by itself and compare the two reports",
            field="cluster.provider",
        )
    if "cluster" not in section.provider:
        given = next((key for key in _CONNECTION_KEYS if key in section.model_fields_set), None)
        if given is not None:
            raise UsageError(
                f"is of the cluster provider, got it with {', '.join(section.provider)}; drop it, or take "
                "--provider cluster",
                field=f"cluster.{given}",
            )
    elif found.address is None:
        raise UsageError(
            "must be given for the cluster provider, got nothing; set host:port of Ray's server for clients, "
            "as --set cluster.address=head:10001",
            field="cluster.address",
        )
    _refuse_slice(section)
    return found


def _refuse_slice(section: ClusterSection) -> None:
    """Refuse a TPU slice for workers that cannot be on one."""
    if section.slice is None:
        return
    if set(section.device) != {"tpu"}:
        raise UsageError(
            f"is for the device tpu, got it with {', '.join(section.device)}; drop it, or set "
            "cluster.device=tpu",
            field="cluster.slice",
        )
    if section.placement == "pack":
        raise UsageError(
            "must be spread on a TPU slice, each of whose hosts has one worker, got pack; drop it",
            field="cluster.placement",
        )


def _cluster_around(document: Mapping[str, object], surroundings: Mapping[str, str]) -> dict[str, object]:
    """What variables say of a cluster that an experiment runs on and says no more of."""
    section = document.get("cluster")
    if not isinstance(section, Mapping) or section.get("provider") not in ("cluster", ["cluster"]):
        return {}
    if section.get("address") is not None:
        return {}
    found = {key: surroundings.get(f"STRATBENCH_CLUSTER_{key.upper()}") for key in _AROUND_KEYS}
    return {f"cluster.{key}": value for key, value in found.items() if value and key not in section}


def _refuse_absolute(workloads: Sequence[WorkloadRef]) -> None:
    """Nodes of a cluster see a user's files elsewhere, where only what is relative leads to them."""
    for index, ref in enumerate(workloads):
        if ref.is_path and ref.reference.startswith("/"):
            raise UsageError(
                f"must be relative to the current folder for the cluster provider, got {ref.reference!r}; "
                "start the command in a folder above it",
                field=f"workloads[{index}]",
            )


def _connection_document(connection: Connection) -> dict[str, JsonValue]:
    """What differs from the default; runs from before there was a choice keep their hash."""
    document: dict[str, JsonValue] = {}
    for key in _AROUND_KEYS:
        value = getattr(connection, key)
        if value != getattr(NO_CLUSTER, key):
            document[key] = str(value)
    if connection.slice is not None:
        document["slice"] = asdict(connection.slice)
    return document


def _checkpoints(section: CheckpointSection) -> Checkpoints:
    # A run that is resumed elsewhere means the same checkpoint.
    restore = None if section.restore is None else Path(section.restore).absolute()
    return Checkpoints(save=section.save, restore=restore)


def _baseline(
    model: ExperimentModel, strategies: tuple[StrategyRef, ...], *, replaced: bool
) -> tuple[StrategyRef, tuple[str, ...]]:
    wanted = model.compare.baseline
    if wanted is None:
        singles = [ref for ref in strategies if ref.name == "single"]
        return (singles or strategies)[0], ()
    ref = strategy_from(wanted, field="compare.baseline")
    if ref in strategies:
        return ref, ()
    if not replaced:
        names = ", ".join(str(item) for item in strategies)
        raise UsageError(
            f"must be one of the strategies ({names}), got {str(ref)!r}", field="compare.baseline"
        )
    note = f"baseline {ref} is not among the strategies given; comparing with {strategies[0]} instead"
    return strategies[0], (note,)


def _filters(sections: Sequence[FilterSection], field: str) -> tuple[CaseFilter, ...]:
    found = []
    for index, item in enumerate(sections):
        path = f"{field}[{index}]"
        if not item.model_fields_set:
            raise UsageError("must have at least one key, got an empty mapping; drop it", field=path)
        found.append(
            CaseFilter(
                workload=None
                if item.workload is None
                else workload_from(item.workload, field=f"{path}.workload"),
                strategy=None
                if item.strategy is None
                else strategy_from(item.strategy, field=f"{path}.strategy"),
                provider=item.provider,
                workers=item.workers,
                replicas_per_worker=item.replicas_per_worker,
                device=item.device,
                cores_per_worker=item.cores_per_worker,
                memory_per_worker_bytes=item.memory_per_worker,
            )
        )
    return tuple(found)


def _unique(items: Sequence[_T]) -> tuple[_T, ...]:
    # Not a set: a parameter mapping can be compared but not hashed.
    found: list[_T] = []
    for item in items:
        if item not in found:
            found.append(item)
    return tuple(found)


def _ref_document(name: str, params: Mapping[str, bool | int | float | str | None]) -> JsonValue:
    return {"name": name, **{key: params[key] for key in sorted(params)}} if params else name


def _sweep_document(values: Sequence[int | float | str | None]) -> JsonValue:
    return values[0] if len(values) == 1 else list(values)


def _filter_document(item: CaseFilter) -> JsonValue:
    document: dict[str, JsonValue] = {
        "workload": None
        if item.workload is None
        else _ref_document(item.workload.reference, item.workload.params),
        "strategy": None
        if item.strategy is None
        else _ref_document(item.strategy.name, item.strategy.params),
        "provider": item.provider,
        "workers": item.workers,
        "replicas_per_worker": item.replicas_per_worker,
        "device": item.device,
        "cores_per_worker": item.cores_per_worker,
        "memory_per_worker": None
        if item.memory_per_worker_bytes is None
        else _size_text(item.memory_per_worker_bytes),
    }
    return {key: value for key, value in document.items() if value is not None}


def _size_text(size_bytes: int) -> int | str:
    for unit, scale in _UNITS:
        if size_bytes % scale == 0:
            return f"{size_bytes // scale}{unit}"
    return size_bytes
