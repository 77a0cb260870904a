"""Records of repeats: identity, figures, verdict, and the reason of a failure."""

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TypeVar

from harness.errors import CaseError
from harness.experiment.cases import CONTROL, Case
from harness.experiment.chosen_strategy import source_hash
from harness.experiment.model import Experiment, Measure
from harness.experiment.schedule import Slot
from harness.host_facts import clock_hz, lock_hash, machine, provenance, repository_of
from harness.measure.collector import Measurement, tcp_fields
from harness.measure.link import link_of_record
from harness.measure.windows import timed_unit
from harness.provision.accelerators import replicas_on_gpus
from harness.provision.protocols import ClusterFacts
from harness.records.comparison import comparison_key, differences_s
from harness.records.conditions import (
    AS_WRITTEN,
    Machine,
    Method,
    ModelSize,
    Placement,
    Provenance,
    Repository,
    sharing_text,
)
from harness.records.costs import GpuUse, Link
from harness.records.outcome import Equivalence, Failure, SavedCheckpoint
from harness.records.record import MANY_RETRANSMITS, RETRANSMITS, WARMUP_UNSETTLED, Record, StrategyClass
from harness.records.run_documents import CHECKPOINT
from harness.run.open_case import CaseRun
from harness.run.plausibility import implausible_bytes, implausible_rate, implausible_speed, payload_is_bound
from harness.run.worker_figures import aggregation_rule
from harness.verification.captures import Capture
from harness.verification.checks import with_capture
from strategies.plan.schema import Plan, StepSummary
from strategies.user_errors import without_option

NOWHERE = ClusterFacts()
"""Facts of repeats for which no workers were started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """The driver's machine and code."""

    machine: Machine = field(default_factory=machine)
    provenance: Provenance = field(default_factory=provenance)


def identity(
    spec: Experiment, run: str, origin: Origin, slot: Slot, facts: ClusterFacts, wall_s: float | None
) -> Record:
    """Record of a repeat before any measurement.

    Args:
        run: id of the run.
        wall_s: seconds spent on the repeat; None if it was not tried.
    """
    case = slot.case
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
        usual_name=strategy.usual_name or None,
        control=strategy_class == "control",
        is_twin=case.is_twin,
        provider=case.shape.provider,
        device=case.shape.device,
        workers=case.shape.workers,
        replicas=case.shape.replicas_per_worker,
        status="ok",
        exposed=facts.exposed,
        provision_s=facts.provision_s,
        price_per_hour=None if price is None else price * case.shape.workers,
        link=Link(requested_mbit=case.shape.link.rate_mbit),
        wall_s=wall_s,
        started_utc=datetime.now(UTC).isoformat(timespec="seconds"),
        method=_method(spec.measure, case, facts),
        machine=facts.machine or origin.machine,
        provenance=replace(
            origin.provenance,
            image_digest=facts.image_digest,
            workload=_repository(case.workload.file) if case.workload.file else None,
            files=files_of(case),
        ),
    )


def _method(measure: Measure, case: Case, facts: ClusterFacts) -> Method:
    return Method(
        seed=measure.seed,
        steps=measure.steps,
        warmup_rule=str(measure.warmup_steps),
        interleave=measure.interleave,
        batch_rule=measure.batch,
        cores_per_worker=case.shape.cores_per_worker,
        memory_per_worker_bytes=case.shape.memory_bytes,
        pinned=facts.pinned,
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
    )


@cache
def _repository(file: Path) -> Repository | None:
    return repository_of(file)


def files_of(case: Case) -> dict[str, str | None]:
    """The user's own files that a case uses → their current hashes."""
    refs = [(case.workload.is_path, case.workload.reference), (case.strategy.is_file, case.strategy.name)]
    return {name: source_hash(name) for is_file, name in refs if is_file}


_UNSEEN_GPUS = GpuUse(why_none="GPUs were not sampled")
Number = TypeVar("Number", int, float)


@dataclass(slots=True, kw_only=True)
class RunRecorder:
    """Makes the records of one run; later records use earlier ones' values."""

    spec: Experiment
    run: str
    _verdicts: dict[str, Equivalence] = field(default_factory=dict)
    _controls: dict[tuple[object, ...], Record] = field(default_factory=dict)
    _origin: Origin = field(default_factory=Origin)

    def take_up(self, records: tuple[Record, ...]) -> None:
        for record in records:
            if record.equivalence is not None and record.equivalence.checked:
                self._verdicts[record.case] = record.equivalence
            self._remember_control(record)

    def verdict(self, case: Case) -> Equivalence | None:
        return self._verdicts.get(case.id)

    def ended(
        self, slot: Slot, facts: ClusterFacts, capture: Capture, plan: Plan, run: CaseRun, wall_s: float
    ) -> Record:
        case = slot.case
        if run.equivalence is not None and run.equivalence.checked:
            self._verdicts[case.id] = run.equivalence
        record = identity(self.spec, self.run, self._origin, slot, facts, wall_s)
        record = _with_run(record, slot, capture, run)
        record = _with_measurement(record, case, run.measurement)
        record = _with_plan(record, capture, plan)
        implausibility = _implausibility(record, case, facts, capture, plan)
        record = replace(
            record,
            status="ok" if implausibility is None else "implausible",
            plausibility=implausibility,
            equivalence=with_capture(
                self._verdicts.get(case.id, run.equivalence or Equivalence(checked=False)),
                capture.facts.verdict,
                is_control=plan.strategy_class == "control",
            ),
            notes=tuple(_notes(record, facts, capture, plan, run)),
        )
        self._remember_control(record)
        record = replace(record, exposed_comm_s=self._exposed_s(record))
        return replace(record, comparison_key=comparison_key(record))

    def failed(
        self, slot: Slot, facts: ClusterFacts, error: CaseError, wall_s: float | None, plan: Plan | None
    ) -> Record:
        return replace(
            identity(self.spec, self.run, self._origin, slot, facts, wall_s),
            status="failed",
            batch_size=None if plan is None else plan.batch_size,
            aggregation=None if plan is None else aggregation_rule(plan),
            error=Failure(type=error.kind, message=without_option(str(error)), stage=error.stage),
        )

    def skipped(
        self, slot: Slot, kind: str, message: str, stage: str = "run", facts: ClusterFacts = NOWHERE
    ) -> Record:
        return replace(
            identity(self.spec, self.run, self._origin, slot, facts, None),
            status="skipped",
            error=Failure(type=kind, message=message, stage=stage),
        )

    def _remember_control(self, record: Record) -> None:
        if record.strategy == CONTROL and not record.is_twin and record.median_step_s is not None:
            self._controls[_alike(record)] = record

    def _exposed_s(self, record: Record) -> float | None:
        control = self._controls.get(_alike(record))
        has_faults = record.method is not None and bool(record.method.faults)
        if record.control or has_faults or record.workers * record.replicas == 1 or control is None:
            return None
        # Different rounds if the two were not measured together.
        in_rounds_s = differences_s(record, control)
        if in_rounds_s:
            return statistics.median(in_rounds_s)
        own_s, other_s = record.median_step_s, control.median_step_s
        return None if own_s is None or other_s is None else own_s - other_s


def _with_run(record: Record, slot: Slot, capture: Capture, run: CaseRun) -> Record:
    """Add the workers' programs, and figures collected after the windows."""
    assert record.method is not None
    first = run.opened[0]
    return replace(
        record,
        method=replace(record.method, input_placement=_input_placement(run, record.method)),
        link=link_of_record(slot.case.shape.link.rate_mbit, run.links),
        rounds=run.rounds,
        observer=run.observer,
        traced_step=None if run.traced is None else run.traced.step,
        codec_s=run.codec_s,
        transform_s=_largest(o.transform_s for o in run.opened),
        import_s=_largest(o.import_s for o in run.opened),
        nodes_before=first.nodes_before,
        nodes_after=_largest(o.nodes_after for o in run.opened),
        passes=first.passes,
        variable_bytes=run.variable_bytes,
        resharding=run.resharding,
        aggregation=run.aggregation,
        evaluation=run.evaluation,
        checkpoint=_checkpoint(slot, capture, run),
    )


def _with_measurement(record: Record, case: Case, measured: Measurement) -> Record:
    """Add figures of the windows, and facts about the workers."""
    assert record.machine is not None
    assert record.provenance is not None
    tcp_bytes, tcp_matrix = tcp_fields(measured.tcp)
    lock = record.provenance.lock_hash if measured.lock is None else lock_hash(measured.lock)
    return replace(
        record,
        machine=replace(record.machine, gpus=measured.gpus),
        provenance=replace(record.provenance, lock_hash=lock),
        examples_per_s=measured.examples_per_s,
        step_s=measured.step_s,
        input_s=measured.input_s,
        warmup_steps=measured.warmup_steps,
        stability=measured.stability,
        cpu_s_per_step=measured.consumption.cpu_s_per_step,
        energy=measured.consumption.energy,
        gpus=measured.consumption.gpus or (_UNSEEN_GPUS if case.shape.hardware == "gpu" else None),
        tcp_bytes_per_step=tcp_bytes,
        resent_bytes_per_step=None if measured.tcp is None else measured.tcp.retransmitted_bytes_per_step,
        interface_bytes_per_step=measured.interface_bytes_per_step,
        hosts=measured.hosts,
        tcp_matrix=None if tcp_matrix is None else tuple(tuple(row) for row in tcp_matrix),
        peak_rss_bytes=measured.peak_rss_bytes,
        loss=measured.loss,
    )


def _with_plan(record: Record, capture: Capture, plan: Plan) -> Record:
    """Add predictions of the plan, and the size of the model."""
    assert record.method is not None
    return replace(
        record,
        method=replace(
            record.method,
            sparse_duplicates=plan.sparse_duplicates,
            timed_unit=timed_unit(plan.execution),
        ),
        batch_size=plan.batch_size,
        payload_bytes_per_step=float(plan.payload_bytes_per_step),
        payload_is_bound=payload_is_bound(plan),
        period=plan.execution.period,
        fused_update=plan.execution.fused_update,
        gradient_bytes=_gradient_bytes(capture.summary),
        model=_model_size(capture),
        warnings=plan.warnings,
    )


def _implausibility(
    record: Record, case: Case, facts: ClusterFacts, capture: Capture, plan: Plan
) -> str | None:
    """Reason why the figures of a record cannot be right, or None."""
    assert record.link is not None
    assert record.step_s is not None
    # A coordinator gives faster workers more to do: fewer bytes than with equal shares may be right.
    if case.chosen.strategy.runner != "coordinator":
        reason = implausible_bytes(plan, record.tcp_bytes_per_step)
        if reason is not None:
            return reason
    if record.median_step_s is not None and case.shape.hardware == "cpu":
        reason = implausible_speed(
            p50_s=record.median_step_s,
            batch_size=plan.batch_size,
            flops_per_example=capture.facts.flops_per_example,
            n_workers=case.shape.workers,
            cores_per_worker=case.shape.cores_per_worker,
            clock_hz=facts.clock_hz or clock_hz(),
            narrow=case.computation.precision != AS_WRITTEN,
        )
        if reason is not None:
            return reason
    return implausible_rate(record.link, record.tcp_matrix, mean_s=record.step_s.mean)


def _gradient_bytes(step: StepSummary) -> int | None:
    trained = [v for v in step.variables if v.kind == "trainable" and v.readiness is not None]
    return None if any(v.sparse for v in trained) else sum(v.bytes for v in trained)


def _model_size(capture: Capture) -> ModelSize:
    variables = capture.summary.variables
    return ModelSize(
        n_variables=len(variables),
        variable_bytes=sum(variable.bytes for variable in variables),
        flops_per_example=capture.facts.flops_per_example,
    )


def _input_placement(run: CaseRun, method: Method) -> Placement | None:
    known = {opened.input_placement for opened in run.opened} - {None}
    if not known:
        return None
    if method.input == "pipeline":
        return "host"
    return known.pop() if len(known) == 1 else "mixed"


def _largest(values: Iterable[Number | None]) -> Number | None:
    return max((value for value in values if value is not None), default=None)


def _checkpoint(slot: Slot, capture: Capture, run: CaseRun) -> SavedCheckpoint | None:
    restored, saved = capture.restored, run.saved_step is not None
    if restored is None and not saved:
        return None
    return SavedCheckpoint(
        saved=f"cases/{slot.case.id}/{slot.repeat}/{CHECKPOINT}" if saved else None,
        saved_step=run.saved_step,
        restored=None if restored is None else str(restored.path),
        restored_step=None if restored is None else restored.step,
    )


def _notes(record: Record, facts: ClusterFacts, capture: Capture, plan: Plan, run: CaseRun) -> Iterator[str]:
    yield from facts.notes
    yield from plan.notes
    if capture.restored is not None:
        yield capture.restored.note
    yield from run.opened[0].notes
    yield from run.notes
    if run.traced is not None and run.traced.note is not None:
        yield run.traced.note
    if record.method is not None and record.method.replicas_on_gpus:
        sharing = sharing_text(record.method.replicas_on_gpus)
        yield f"{sharing}: times and GPU traffic differ from those with one GPU per replica"
    yield from _doubts_on(run.measurement)


def _doubts_on(measured: Measurement) -> Iterator[str]:
    if not measured.settled:
        yield f"{WARMUP_UNSETTLED} within {measured.warmup_steps} steps: step times still changed"
    gpus = measured.consumption.gpus
    if gpus is not None and gpus.why_none is not None:
        yield f"GPU activity unknown: {gpus.why_none}"
    tcp = measured.tcp
    if tcp is None:
        return
    if tcp.n_closed:
        yield "TCP bytes are incomplete: bytes of closed connections are missing"
    share = tcp.retransmitted_bytes_per_step / tcp.bytes_per_step if tcp.bytes_per_step else 0.0
    if share > MANY_RETRANSMITS:
        # Without the figure, which the record has, the note is the same for all repeats.
        yield f"{RETRANSMITS} between workers"


def _alike(record: Record) -> tuple[object, ...]:
    method, link = record.method, record.link
    return (
        record.workload,
        tuple(sorted(record.workload_params.items())),
        record.provider,
        record.device,
        record.workers,
        record.replicas,
        record.batch_size,
        bool(record.fused_update),
        record.strategy_params.get("merge_rows") is True,
        record.repeat,
        method and (method.cores_per_worker, method.memory_per_worker_bytes),
        method and (method.precision, method.xla, method.tf32),
        link and link.requested_limits,
    )
