"""One repeat of one case, whatever happens to it: captured, planned, run, recorded."""

import contextlib
import functools
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from harness.equivalence.reference_outcome import Reference
from harness.errors import UNSUPPORTED, CaseError, HarnessError, StoreError, first_line
from harness.experiment.cases import Case
from harness.experiment.schedule import Slot
from harness.experiment.spec import ExperimentSpec
from harness.measure.timeouts import Timeouts
from harness.provision.failures import REFUSED_STEP, WorkerDied, WorkerUnresponsive
from harness.provision.protocols import Cluster
from harness.records.record import Equivalence, Record
from harness.records.run_folder import RunFolder
from harness.records.steps_file import Steps
from harness.run.captures import Capture, Captures, planned, topology_of_case
from harness.run.case import CHECK_STEPS, CaseRun, run_case
from harness.run.progress import Progress
from harness.run.ready import PreparedCase
from harness.run.recorder import RunRecorder, SiteFacts
from strategies.plan.schema import HELD_TO_THE_REFERENCE, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """What is known of a repeat that has ended.

    Attributes:
        steps: None unless it was measured.
    """

    record: Record
    steps: Steps | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotRunner:
    """Takes the repeats of a run through capture, plan, processes and record."""

    spec: ExperimentSpec
    folder: RunFolder
    cluster: Cluster
    recorder: RunRecorder
    captures: Captures
    progress: Progress
    timeouts: Timeouts

    def prepare(self, slots: Sequence[Slot], *, deadline_s: float) -> None:
        """Capture every workload and make every reference, so that no time passes between cases for that.

        What cannot be made is recorded when the turn of its first repeat comes.

        Args:
            deadline_s: on `time.monotonic()`; nothing is begun after it.
        """
        cases = {slot.case.id: slot.case for slot in slots}.values()
        # A host that cannot limit links is found out here, before anything is measured.
        self.cluster.limit_links(next((case.shape.links for case in cases if any(case.shape.links)), ()))
        for case in cases:
            if time.monotonic() >= deadline_s:
                return
            with self.progress.doing(f"capturing {case.workload_name}"), contextlib.suppress(CaseError):
                capture, plan = planned(self.captures, case)
                for warning in plan.warnings:
                    self.progress.note(f"warning: {case.workload_name} {case.strategy}: {warning}")
                self.captures.batches(case, capture)
                self._reference(case, capture)
                self._bounded(case, capture, plan, repeat=0)

    def run(self, slot: Slot) -> Ended:
        """Run a repeat.

        Raises:
            HarnessError: other than `CaseError`: the run cannot go on, since its folder takes no more files
                or its workers are gone.
        """
        started_s = time.monotonic()
        plan: Plan | None = None
        case = slot.case
        try:
            with self.progress.doing(slot.title):
                capture, plan = planned(self.captures, case)
                with storing(self.folder.path):
                    self.folder.write_plan(case.id, slot.repeat, plan.model_dump(mode="json"))
                    logs = [
                        self.folder.worker_log(case.id, slot.repeat, k) for k in range(case.shape.workers)
                    ]
                bounded = self._bounded(case, capture, plan, repeat=slot.repeat)
                self.cluster.limit_links(case.shape.links)
                attempt = functools.partial(
                    run_case,
                    self.cluster,
                    PreparedCase(
                        case=case,
                        seed=self.spec.measure.seed,
                        capture=capture,
                        plan=plan,
                        batches=self.captures.batches(case, capture),
                        logs=logs,
                    ),
                    n_steps=self.spec.measure.steps,
                    warmup=_warm_up(self.spec),
                    reference=self._reference(case, capture),
                    repeat=slot.repeat,
                    checkpoint=self._checkpoint(slot),
                    trace=self.spec.measure.trace,
                    timeouts=self.timeouts,
                )
                ran = with_second_chance(attempt, lambda note: self.progress.note(f"{slot.title}: {note}"))
        except CaseError as error:
            if error.kind == UNSUPPORTED:
                return Ended(
                    record=self.recorder.skipped(slot, error.kind, str(error), error.stage, self._site())
                )
            return self._failed(slot, error, time.monotonic() - started_s, plan)
        except HarnessError:
            raise
        except Exception as error:  # noqa: BLE001 - a night's run must not end by our own mistake in one case
            return self._failed(slot, _unexpected(error), time.monotonic() - started_s, plan)
        ran = ran if bounded is None else replace(ran, equivalence=bounded)
        with storing(self.folder.path):
            self.folder.write_steps(case.id, slot.repeat, ran.measurement.steps)
            if ran.traced is not None and ran.traced.document is not None:
                self.folder.write_trace(case.id, slot.repeat, ran.traced.document)
        record = self.recorder.ended(slot, self._site(), capture, plan, ran, time.monotonic() - started_s)
        return Ended(record=record, steps=ran.measurement.steps)

    def _site(self) -> SiteFacts:
        """What is known of the workers by now."""
        cluster = self.cluster
        return SiteFacts(
            notes=tuple(cluster.notes),
            pinned=cluster.pinned,
            exposed=not cluster.isolated,
            provision_s=cluster.provision_s,
            image_digest=cluster.image_digest,
            machine=cluster.machine,
            clock_hz=cluster.clock_hz,
        )

    def _checkpoint(self, slot: Slot) -> Path | None:
        return self.folder.checkpoint(slot.case.id, slot.repeat) if self.spec.checkpoint.save else None

    def _reference(self, case: Case, capture: Capture) -> Reference | None:
        """What to check against; None where the case was checked in an earlier repeat, or never is."""
        is_held = case.chosen.strategy.strategy_class in HELD_TO_THE_REFERENCE
        if self.recorder.verdict(case) is not None or not is_held:
            return None
        return self.captures.reference(case, capture, topology_of_case(case, capture), CHECK_STEPS)

    def _bounded(self, case: Case, capture: Capture, plan: Plan, *, repeat: int) -> Equivalence | None:
        """Whether a compressed strategy keeps within its bounds, found out beside its workers.

        None where the case was checked in an earlier repeat, or is of another class. All workers share a
        process, which may be too large for one: that costs no measurement, and the next repeat tries again.
        """
        if self.recorder.verdict(case) is not None or plan.strategy_class != "bounded":
            return None
        means = self.captures.separability(case, capture, topology_of_case(case, capture))
        try:
            verdict = self.captures.bounds(case, capture, _on_cpus(plan), CHECK_STEPS)
        except (WorkerDied, WorkerUnresponsive) as error:
            return Equivalence(checked=False, reason=f"the check did not end: {first_line(str(error))}")
        return Equivalence(
            checked=True,
            within_bound=verdict.within,
            reason=verdict.reason,
            undecidable=verdict.undecidable,
            separable=means.separable,
            separability=means.explanation,
            checked_in_repeat=repeat,
        )

    def _failed(self, slot: Slot, error: CaseError, wall_s: float, plan: Plan | None) -> Ended:
        # Logs and tracebacks are too long for a record.
        notes = "\n\n".join(getattr(error, "__notes__", []))
        if notes:
            with storing(self.folder.path):
                path = self.folder.repeat_dir(slot.case.id, slot.repeat) / "failure.log"
                path.write_text(f"{error}\n\n{notes}\n")
        return Ended(record=self.recorder.failed(slot, self._site(), error, wall_s, plan))


def _on_cpus(plan: Plan) -> Plan:
    """A plan as workers that share a process can carry it out: they would have to share a GPU, too."""
    nodes = tuple(
        node.model_copy(update={"transport": "auto"}) if node.transport == "nccl" else node
        for node in plan.nodes
    )
    return plan.model_copy(update={"device": "cpu", "nodes": nodes})


def with_second_chance(attempt: Callable[[], CaseRun], tell: Callable[[str], None]) -> CaseRun:
    """Run a case; where TensorFlow refused a step by chance, run it once more, on fresh processes.

    Args:
        tell: hears why it is run again, before that.
    Raises:
        CaseError: it failed otherwise, or was refused twice.
    """
    try:
        return attempt()
    except CaseError as error:
        if error.kind != REFUSED_STEP:
            raise
    note = "run again on fresh processes, since TensorFlow by chance took a step for one before"
    tell(note)
    ran = attempt()
    return replace(ran, notes=(*ran.notes, note))


@contextlib.contextmanager
def storing(run_dir: Path) -> Iterator[None]:
    """Say in one line that the run folder takes no more files.

    Raises:
        StoreError: a file could not be written.
    """
    try:
        yield
    except OSError as error:
        way_out = "put it back" if isinstance(error, FileNotFoundError) else "make room"
        raise StoreError(
            f"{run_dir} must take more files, got {error.strerror or error}; {way_out} and go on "
            "with --resume",
            field="out",
        ) from error


def _warm_up(spec: ExperimentSpec) -> int | Literal["auto"]:
    asked = spec.measure.warmup_steps
    return "auto" if asked is None else asked


def _unexpected(error: Exception) -> CaseError:
    failure = CaseError(
        "internal-error",
        f"unexpected {type(error).__name__}: {first_line(str(error))}; report the traceback in failure.log",
        stage="run",
    )
    failure.add_note("".join(traceback.format_exception(error)).rstrip())
    return failure
