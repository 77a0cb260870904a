"""Repeats of cases: capture, plan, rounds, record; failures included."""

import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING

from harness.errors import UNSUPPORTED, CaseError, UsageError, first_line, own_errors
from harness.experiment.cases import Case
from harness.experiment.model import Experiment, Measure
from harness.experiment.schedule import Slot, baseline_of
from harness.measure.timeouts import Timeouts
from harness.prediction.profile import StoredProfile
from harness.provision.failures import USER_ERROR
from harness.provision.protocols import Cluster, ClusterFacts
from harness.records.costs import Preparation
from harness.records.outcome import Equivalence, Evaluation
from harness.records.record import Record
from harness.records.run_documents import LOGS
from harness.records.run_folder import RunFolder
from harness.records.steps_file import Steps
from harness.run.block import Block, BlockResults
from harness.run.failure_causes import naming_batch_size, run_folder_errors, with_batch_size, with_fault_cause
from harness.run.open_case import CaseRun, OpenCase
from harness.run.process_setup import PreparedCase
from harness.run.progress import Progress
from harness.run.recorder import RunRecorder
from harness.verification.captures import Capture, Captures, planned_to_run
from harness.verification.checks import IN_FLOAT64, CaseChecks
from harness.verification.verification import BY_MORE_REFERENCES
from strategies.plan.schema import Plan

if TYPE_CHECKING:
    from harness.measure.prometheus import Exporter


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRepeat:
    """A repeat that has ended.

    Attributes:
        steps: all steps; None if it was not measured.
    """

    record: Record
    steps: Steps | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRunner:
    """Runs repeats: capture, plan, processes and record.

    Args:
        cases: all cases of the run, also those that have ended already.
    """

    spec: Experiment
    cases: Sequence[Case]
    folder: RunFolder
    cluster: Cluster
    recorder: RunRecorder
    captures: Captures
    progress: Progress
    exporter: "Exporter | None"
    timeouts: Timeouts

    def prepare(self, slots: Sequence[Slot], *, deadline_s: float) -> None:
        """Capture every workload and make every reference, so that cases follow one another without pauses.

        A failed capture or plan is recorded when the case's first repeat is due.

        Args:
            deadline_s: time on `time.monotonic()` after which no capture or reference begins.
        Raises:
            UsageError: one mistake of the user affects all cases of the run.
        """
        cases = {slot.case.id: slot.case for slot in slots}.values()
        # This shows if the host cannot limit links, before anything is measured.
        self.cluster.limit_links(next((case.shape.links for case in cases if any(case.shape.links)), ()))
        warned: set[str] = set()
        errors: list[CaseError] = []
        for case in cases:
            if time.monotonic() >= deadline_s:
                return
            try:
                with self.progress.preparing(case.workload_name, self.timeouts.prepare_s), own_errors():
                    self._prepare(case, warned)
            except CaseError as error:
                errors.append(error)
        if len(errors) == len(self.cases):
            _refuse_one_mistake(errors)

    def _prepare(self, case: Case, warned: set[str]) -> None:
        capture, plan = planned_to_run(self.captures, case)
        for warning in plan.warnings:
            # The report names the other cases as well.
            if warning not in warned:
                self.progress.note(f"warning: {case.title}: {warning}")
            warned.add(warning)
        self.captures.batches(case, capture)
        self._checks().reference(case, capture)
        self._checks().bounded(case, capture, plan, repeat=0)

    def run(self, slots: Sequence[Slot]) -> Iterator[tuple[Slot, EndedRepeat]]:
        """Run the repeats of a block; those without room in memory beside the others follow them.

        Returns:
            Each repeat, once all that were measured with it have ended.
        Raises:
            HarnessError: any but `CaseError`: the run cannot go on, because its folder cannot be written to
                or its workers are gone.
        """
        left = {slot.case.id: slot for slot in slots}
        failed: set[str] = set()
        n_seats = max(slot.case.shape.workers for slot in slots)
        while left:
            ready: dict[str, PreparedCase] = {}
            bounded: dict[str, Equivalence | None] = {}
            for name, slot in list(left.items()):
                try:
                    ready[name], bounded[name] = self._ready(slot, n_seats)
                except CaseError as error:
                    yield left.pop(name), self._failed(slot, error)
            results = self._taken_together(list(ready.values()), slots[0], failed)
            assert not left or len(results.postponed) < len(left), "a block makes progress"
            for name in [name for name in left if name not in results.postponed]:
                slot, wall_s = left.pop(name), results.wall_s.get(name, 0.0)
                if name in results.errors:
                    failed.add(name)
                    plan = ready[name].plan
                    failure = with_batch_size(results.errors[name], slot.case.workload_name, plan.batch_size)
                    failure = with_fault_cause(failure, slot.case.scenario.faults)
                    yield slot, self._failed(slot, failure, plan, wall_s)
                    continue
                ran = self._decided(slot, ready[name], results.runs[name], bounded[name])
                ran = self._evaluated(slot, ready[name], ran)
                yield slot, self._measured(slot, ready[name], ran, wall_s)

    def _ready(self, slot: Slot, n_seats: int) -> tuple[PreparedCase, Equivalence | None]:
        case = slot.case
        with self.progress.doing(slot.title), own_errors():
            require_input(case, self.spec.measure)
            capture, plan = planned_to_run(self.captures, case)
            require_evaluation(capture, case, self.spec.measure)
            with run_folder_errors(self.folder.path):
                self.folder.begin_repeat(case.id, slot.repeat)
                self.folder.write_plan(case.id, slot.repeat, plan.model_dump(mode="json"))
                workers = range(case.shape.workers)
                logs = [self.folder.worker_log(case.id, slot.repeat, worker) for worker in workers]
            with naming_batch_size(case.workload_name, plan.batch_size):
                bounded = self._checks().bounded(case, capture, plan, repeat=slot.repeat)
                return self._repeat(slot, capture, plan, logs, n_seats), bounded

    def _repeat(
        self, slot: Slot, capture: Capture, plan: Plan, logs: Sequence[Path], n_seats: int
    ) -> PreparedCase:
        return PreparedCase(
            case=slot.case,
            seed=self.spec.measure.seed,
            capture=capture,
            plan=plan,
            batches=self.captures.batches(slot.case, capture),
            logs=logs,
            first=first_worker(slot, n_seats),
            input=self.spec.measure.input,
            reference=self._checks().reference(slot.case, capture),
            number=slot.repeat,
            checkpoint=self._checkpoint(slot),
        )

    def _taken_together(
        self, repeats: Sequence[PreparedCase], first: Slot, failed: Collection[str]
    ) -> BlockResults:
        if not repeats:
            return BlockResults(runs={}, errors={}, postponed=(), wall_s={})
        cases = [repeat.case for repeat in repeats]
        largest = max(cases, key=lambda case: case.shape.workers)
        own = next((case.id for case in cases if case.strategy == self.spec.baseline), None)
        # None for each worker without a limit; else the previous block's limit would stay.
        self.cluster.limit_links(largest.shape.links)
        what = f"{first.case.workload_name} {largest.shape.size}"
        self.progress.stage("check", what)
        with self.progress.changing() as doing:
            block = Block(
                cluster=self.cluster,
                measure=self.spec.measure,
                timeouts=self.timeouts,
                beside=None if own is not None else self._baseline_beside(largest, first, failed),
                baseline=own,
                doing=doing,
                notify=self.progress.note,
                see=partial(self._see, doing, f"{what} repeat {first.repeat}"),
            )
            return block.run(repeats, seed=f"{self.spec.measure.seed}/{first.block}")

    def _see(
        self, doing: Callable[[str], None], what: str, case: OpenCase, step_s: float, number: int
    ) -> None:
        self.progress.stage("measure", what)
        moment = case.moment(step_s, number=number, experiment=self.spec.name)
        doing(self.progress.live(moment))
        if self.exporter is not None:
            self.exporter.window(moment)

    def _baseline_beside(self, largest: Case, first: Slot, failed: Collection[str]) -> PreparedCase | None:
        baseline = baseline_of(largest, self.cases, self.spec.baseline)
        if baseline is None or baseline.id in failed or not self.spec.measure.interleave:
            return None
        if largest.shape.alone:
            return None
        beside = self.folder.path / LOGS / f"baseline-beside-{first.block}"
        logs = [beside / f"worker-{worker}.log" for worker in range(baseline.shape.workers)]
        try:
            with own_errors():
                require_input(baseline, self.spec.measure)
                capture, plan = planned_to_run(self.captures, baseline)
                repeat = self._repeat(
                    replace(first, case=baseline), capture, plan, logs, largest.shape.workers
                )
                return replace(repeat, reference=None, checkpoint=None)
        except CaseError:
            return None  # its own repeat records the reason

    def _decided(
        self, slot: Slot, repeat: PreparedCase, ran: CaseRun, bounded: Equivalence | None
    ) -> CaseRun:
        equivalence = bounded or ran.equivalence
        if equivalence is None:
            return ran
        notes = ran.notes
        checks = self._checks(partial(self._write_failure, slot))
        if ran.doubt is not None:
            self.progress.stage("check", f"{slot.title}, by more references")
            with self.progress.doing(f"{slot.title}: checking by more references"):
                equivalence = checks.judged_again(
                    slot.case, repeat.capture, repeat.plan, ran.doubt, equivalence
                )
            notes = (*notes, BY_MORE_REFERENCES)
        with self.progress.doing(f"{slot.title}: checking"):
            decided = checks.decided(slot.case, repeat.capture, repeat.plan, equivalence)
        if decided.dtype != equivalence.dtype:
            notes = (*notes, IN_FLOAT64)
        return replace(ran, equivalence=decided, doubt=None, notes=notes)

    def _evaluated(self, slot: Slot, repeat: PreparedCase, ran: CaseRun) -> CaseRun:
        if ran.values is None:
            return ran
        measured = ran.measurement
        try:
            with self.progress.doing(f"{slot.title}: evaluating"):
                metrics = self.captures.evaluated(slot.case, repeat.capture, ran.values)
        except CaseError as error:
            note = f"not evaluated: {first_line(str(error))}"
            return replace(ran, values=None, notes=(*ran.notes, note))
        evaluation = Evaluation(
            step=measured.warmup_steps + measured.n_steps,
            metrics={name: value if isfinite(value) else None for name, value in metrics.items()},
        )
        return replace(ran, values=None, evaluation=evaluation)

    def _measured(self, slot: Slot, repeat: PreparedCase, ran: CaseRun, wall_s: float) -> EndedRepeat:
        case = slot.case
        with run_folder_errors(self.folder.path):
            self.folder.write_steps(case.id, slot.repeat, ran.measurement.steps)
            if ran.traced is not None and ran.traced.document is not None:
                self.folder.write_trace(case.id, slot.repeat, ran.traced.document)
            if ran.profile is not None:
                stored = StoredProfile(step=repeat.capture.summary, profile=ran.profile)
                self.folder.write_profile(case.id, slot.repeat, stored.to_document())
        record = self.recorder.ended(slot, self._facts(case), repeat.capture, repeat.plan, ran, wall_s)
        capture_s, reference_s = self.captures.seconds(case, repeat.capture)
        limits = self.timeouts.for_model(repeat.capture.summary, case.shape.n_replicas)
        preparation = Preparation(
            capture_s=capture_s,
            reference_s=reference_s,
            limit_s=limits.prepare_s,
            start_s=ran.start_s,
            check_s=ran.check_s,
            warmup_s=ran.warmup_s,
        )
        record = replace(record, preparation=preparation)
        return EndedRepeat(record=record, steps=ran.measurement.steps)

    def _facts(self, case: Case) -> ClusterFacts:
        return self.cluster.facts().of_case(case.shape)

    def _checks(self, keep: Callable[[CaseError], None] = lambda _: None) -> CaseChecks:
        return CaseChecks(captures=self.captures, known=self.recorder.verdict, keep=keep)

    def _write_failure(self, slot: Slot, error: CaseError) -> None:
        with run_folder_errors(self.folder.path):
            self.folder.write_failure(slot.case.id, slot.repeat, error)

    def _checkpoint(self, slot: Slot) -> Path | None:
        return self.folder.checkpoint(slot.case.id, slot.repeat) if self.spec.checkpoint.save else None

    def _failed(
        self, slot: Slot, error: CaseError, plan: Plan | None = None, wall_s: float | None = None
    ) -> EndedRepeat:
        if error.kind == UNSUPPORTED:
            record = self.recorder.skipped(slot, error.kind, str(error), error.stage, self._facts(slot.case))
            return EndedRepeat(record=record)
        self._write_failure(slot, error)
        return EndedRepeat(record=self.recorder.failed(slot, self._facts(slot.case), error, wall_s, plan))


def _refuse_one_mistake(errors: Sequence[CaseError]) -> None:
    """Refuse a run in which all cases, except skipped ones, fail for the same mistake of the user.

    Raises:
        UsageError: all of these cases fail for that mistake.
    """
    failures = [error for error in errors if error.kind != UNSUPPORTED]
    if failures and {(error.kind, str(error)) for error in failures} == {(USER_ERROR, str(failures[0]))}:
        raise UsageError(failures[0].message, field=failures[0].field) from failures[0]


def require_input(case: Case, measure: Measure) -> None:
    """Refuse a strategy that cannot read its batches from the experiment's kind of input.

    Raises:
        CaseError: `unsupported`.
    """
    if measure.input == "pipeline" and case.chosen.strategy.runner == "coordinator":
        raise CaseError(
            UNSUPPORTED,
            "strategies must make their steps in workers for measure.input=pipeline, got "
            f"{case.chosen.strategy.name}, whose coordinator hands out staged batches; take staged, or leave "
            "it out",
            stage="plan",
        )


def require_evaluation(capture: Capture, case: Case, measure: Measure) -> None:
    """Refuse a workload without an evaluation, if the experiment asks for one.

    Raises:
        CaseError: the workload has no `evaluate`.
    """
    if measure.evaluate and not capture.facts.evaluates:
        raise CaseError(
            USER_ERROR,
            "must be a workload with a method evaluate() that returns metrics by name, got "
            f"{case.workload_name}, which has none; add one, or set measure.evaluate=false",
            stage="plan",
            field="measure.evaluate",
        )


def first_worker(slot: Slot, n_seats: int) -> int:
    """Number of the worker that runs a case's first one; cases of one worker use all of the block's in turn.

    Args:
        n_seats: number of workers of the block.
    """
    return slot.repeat % n_seats if slot.case.shape.workers == 1 else 0
