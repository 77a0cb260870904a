"""Which repeat a record is of, and under what circumstances it was made, whatever came of it."""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path

from harness.experiment.cases import Case
from harness.experiment.chosen_strategy import source_hash
from harness.experiment.model import Experiment
from harness.experiment.schedule import Slot
from harness.host_facts import machine, provenance, repository_of
from harness.provision.accelerators import replicas_on_gpus
from harness.records.facts.circumstances import Machine, Method, Provenance, Repository
from harness.records.facts.links import Link
from harness.records.record import Record, StrategyClass


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteFacts:
    """What records say of the workers that their repeats ran on; None where there were none.

    Attributes:
        notes: what every record should say about them.
        pinned: whether they have cores of their own.
        exposed: whether strangers on the network can reach their servers.
        provision_s: seconds from their start until all were ready.
        image_digest: id of the image of their containers.
        machine: their host, and `clock_hz` the most that its cores run at; None takes this host.
    """

    notes: tuple[str, ...] = ()
    pinned: bool | None = None
    exposed: bool | None = None
    provision_s: float | None = None
    image_digest: str | None = None
    machine: Machine | None = None
    clock_hz: float | None = None


NOWHERE = SiteFacts()
"""Of repeats that no workers were started for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The driver's machine, and the code that runs on it."""

    machine: Machine = field(default_factory=machine)
    provenance: Provenance = field(default_factory=provenance)


def identity(
    spec: Experiment, run: str, origin: Origin, slot: Slot, site: SiteFacts, wall_s: float | None
) -> Record:
    """The record of a repeat of which nothing has been measured yet.

    Args:
        run: its id.
        wall_s: seconds spent on it; None where it was not tried.
    """
    case, measure = slot.case, spec.measure
    strategy = case.chosen.strategy
    strategy_class: StrategyClass = strategy.strategy_class
    price = spec.price_per_hour(case.shape.device)
    return Record(
        run=run,
        case=case.id,
        repeat=slot.repeat,
        order=slot.order,
        experiment=spec.name,
        spec_hash=spec.spec_hash,
        workload=case.workload_name,
        workload_params=dict(case.workload.params),
        strategy=strategy.name,
        strategy_params=dict(case.strategy.params),
        strategy_class=strategy_class,
        control=strategy_class == "control",
        is_twin=case.is_twin,
        provider=case.shape.provider,
        device=case.shape.device,
        workers=case.shape.workers,
        replicas=case.shape.replicas_per_worker,
        status="ok",
        exposed=site.exposed,
        provision_s=site.provision_s,
        price_per_hour=None if price is None else price * case.shape.workers,
        link=Link(requested_mbit=case.shape.rate_mbit),
        wall_s=wall_s,
        started_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        method=Method(
            seed=measure.seed,
            steps=measure.steps,
            warmup_rule=str(measure.warmup_steps),
            interleave=measure.interleave,
            batch_rule=measure.batch,
            cores_per_worker=case.shape.cores_per_worker,
            memory_per_worker_bytes=case.shape.memory_bytes,
            pinned=site.pinned,
            rounds=measure.n_rounds,
            window_s=measure.window_s,
            until_ci=None if measure.until is None else measure.until.ratio_ci,
            precision=case.computation.precision,
            xla=case.computation.xla,
            tf32=case.computation.tf32,
            input=measure.input,
            freed_memory="kept",
            sparse_duplicates=None,
            scenario=case.scenario.name,
            replicas_on_gpus=replicas_on_gpus(case.shape),
            faults=tuple(f"worker {fault.worker}: {fault}" for fault in case.scenario.faults),
        ),
        machine=site.machine or origin.machine,
        provenance=replace(
            origin.provenance,
            image_digest=site.image_digest,
            workload=_repository(case.workload.file) if case.workload.file else None,
            files=files_of(case),
        ),
    )


@cache
def _repository(file: Path) -> Repository | None:
    """The repository of a user's file as it was when the run began."""
    return repository_of(file)


def files_of(case: Case) -> dict[str, str | None]:
    """The user's own files that a case comes of → their hashes as they are now."""
    refs = [(case.workload.is_path, case.workload.reference), (case.strategy.is_file, case.strategy.name)]
    return {name: source_hash(name) for is_file, name in refs if is_file}
