"""Where the stages of a command meet: nothing before a stage knows of it, and nothing after it calls back."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from harness.captures import Capture, Captures, topology_of_case
from harness.case_runner import STUDY, run_case
from harness.environment import environment
from harness.equivalence import Reference
from harness.errors import EXIT_CASE, EXIT_OK, EXIT_USAGE, CaseError, UsageError
from harness.matrix import Case, Slot, expand, schedule
from harness.options import PlanRequest, RunOptions, RunOutcome, Target, TransformRequest, VerifyRequest
from harness.progress import Progress
from harness.provision.base import Cluster, ClusterShape
from harness.provision.failures import USER_ERROR
from harness.provision.local import LocalProvider
from harness.provision.solo import SoloProcess, solo_process
from harness.records import Record
from harness.run_recorder import RunRecorder
from harness.spec import ExperimentSpec
from harness.store import RunFolder, open_run
from strategies.errors import StrategyError
from strategies.plan import Plan
from strategies.registry import make_plan, resolve

CHECK_STEPS = 4
# Warm-up ends after at most so many steps, see `harness.measure.windows`.
MAX_WARMUP_STEPS = 50
VERIFY_S = 900.0
_CHECKED_CLASSES = ("exact", "control")


def run(spec: ExperimentSpec, options: RunOptions) -> RunOutcome:
    """Run an experiment: every repeat of every case on fresh processes, recorded as it ends.

    Raises:
        UsageError: the run folder cannot be used. ProvisionError: workers cannot be had here.
    """
    cases = expand(spec)
    if options.dry_run:
        return RunOutcome(run_dir=None, cases=tuple(case.id for case in cases))
    with open_run(
        options.out,
        experiment=spec.to_document(),
        environment=environment(options.environ),
        resume=options.resume,
    ) as folder:
        slots = schedule(
            cases,
            repeats=spec.measure.repeats,
            seed=spec.measure.seed,
            interleave=spec.measure.interleave,
            is_control=lambda case: resolve(case.strategy.name)[0].strategy_class == "control",
        )
        left = [slot for slot in slots if (slot.case.id, slot.repeat) not in folder.done]
        progress = Progress(len(slots), live=options.live, quiet=options.quiet)
        try:
            if left:
                _run_slots(left, spec, options, folder, progress)
        finally:
            # A run that was interrupted has a report too, of what it got.
            report = _write_report(folder)
        return _outcome(folder, report)


def verify(request: VerifyRequest) -> dict[str, Any]:
    """Check a strategy against the single-device reference; see `stratbench verify`.

    Raises:
        UsageError: the target cannot be used. CaseError: the check could not be made.
    """
    with _study(request.target, n_batches=request.steps) as (process, captures, case):
        capture, made = _planned(captures, case)
        batches = captures.batches(case, capture)
        answer = process.call(
            f"{STUDY}:verify",
            (str(capture.folder), str(batches), made, request.steps, request.dtype == "float64"),
            timeout_s=VERIFY_S,
            stage="verify",
        )
        assert isinstance(answer, dict)
        return {**_heading(made), "steps": request.steps, "dtype": request.dtype, **answer}


def plan(request: PlanRequest) -> dict[str, Any]:
    """Where a strategy puts each variable, and what it will send; see `stratbench plan`."""
    with _study(request.target, n_batches=1) as (_, captures, case):
        _, made = _planned(captures, case)
        document = made.model_dump(mode="json")
        return {**document, "class": document.pop("strategy_class")}


def transform(request: TransformRequest) -> dict[str, Any]:
    """A strategy's passes applied for one worker; see `stratbench transform`."""
    with _study(request.target, n_batches=1) as (process, captures, case):
        capture, made = _planned(captures, case)
        graphdef = None if request.graphdef is None else str(request.graphdef.absolute())
        answer = process.call(
            f"{STUDY}:transform",
            (str(capture.folder), made, request.rank, graphdef, request.text),
            timeout_s=VERIFY_S,
            stage="transform",
        )
        assert isinstance(answer, dict)
        return answer


def _run_slots(
    slots: list[Slot], spec: ExperimentSpec, options: RunOptions, folder: RunFolder, progress: Progress
) -> None:
    """Run what is left on one cluster, which serves the cases of all shapes."""
    started_s = time.monotonic()
    recorder = RunRecorder(spec=spec, run=folder.run)
    recorder.take_up(folder.records)
    with ExitStack() as stack:
        cluster = stack.enter_context(LocalProvider().start(_shape(slots), folder.run, folder.path / "logs"))
        runner = _SlotRunner(
            spec=spec,
            folder=folder,
            cluster=cluster,
            recorder=recorder,
            captures=Captures(
                Path(stack.enter_context(TemporaryDirectory(prefix="stratbench-captures-"))),
                _job_in(cluster, folder),
                seed=spec.measure.seed,
                n_batches=MAX_WARMUP_STEPS + spec.measure.steps,
                n_least=CHECK_STEPS,
            ),
            progress=progress,
        )
        with progress.doing("starting workers"):
            cluster.wait_ready(1)
        for note in cluster.notes:
            progress.note(note)
        for index, slot in enumerate(slots):
            reason = _reason_to_stop(options, started_s, folder.records)
            if reason is not None:
                for skipped in slots[index:]:
                    folder.append(recorder.skipped(skipped, *reason))
                progress.note(f"{len(slots) - index} repeats skipped: {reason[1]}")
                return
            recorder.pinned, recorder.provision_s = cluster.pinned, cluster.provision_s
            record = runner.run(slot)
            folder.append(record)
            progress.ended(slot, record)


@dataclass(frozen=True, slots=True, kw_only=True)
class _SlotRunner:
    """Takes one repeat through capture, plan, processes and record."""

    spec: ExperimentSpec
    folder: RunFolder
    cluster: Cluster
    recorder: RunRecorder
    captures: Captures
    progress: Progress

    def run(self, slot: Slot) -> Record:
        """The record of a repeat, whatever happens to it."""
        started_s = time.monotonic()
        made: Plan | None = None
        case = slot.case
        try:
            with self.progress.doing(f"{case.workload_name} {case.strategy} repeat {slot.repeat}"):
                capture, made = _planned(self.captures, case)
                self.folder.write_plan(case.id, slot.repeat, made.model_dump(mode="json"))
                ran = run_case(
                    self.cluster,
                    capture,
                    made,
                    self.captures.batches(case, capture),
                    [self.folder.worker_log(case.id, slot.repeat, k) for k in range(case.workers)],
                    n_steps=self.spec.measure.steps,
                    warmup="auto"
                    if self.spec.measure.warmup_steps is None
                    else self.spec.measure.warmup_steps,
                    reference=self._reference(case, capture, made),
                    repeat=slot.repeat,
                )
        except CaseError as error:
            self._keep_evidence(slot, error)
            return self.recorder.failed(slot, error, time.monotonic() - started_s, made)
        self.folder.write_steps(case.id, slot.repeat, ran.measurement.steps)
        return self.recorder.ended(slot, capture, made, ran, time.monotonic() - started_s)

    def _reference(self, case: Case, capture: Capture, made: Plan) -> Reference | None:
        """What to check against; None where the case was checked in an earlier repeat."""
        if self.recorder.verdict(case) is not None or made.strategy_class not in _CHECKED_CLASSES:
            return None
        return self.captures.reference(case, capture, topology_of_case(case, capture), CHECK_STEPS)

    def _keep_evidence(self, slot: Slot, error: CaseError) -> None:
        """Logs and tracebacks are too long for a record."""
        notes = "\n\n".join(getattr(error, "__notes__", []))
        if notes:
            path = self.folder.repeat_dir(slot.case.id, slot.repeat) / "failure.log"
            path.write_text(f"{error}\n\n{notes}\n")


def _planned(captures: Captures, case: Case) -> tuple[Capture, Plan]:
    capture = captures.of(case)
    try:
        topology = topology_of_case(case, capture)
        return capture, make_plan(case.strategy.name, case.strategy.params, capture.summary, topology)
    except (StrategyError, UsageError) as error:
        field = error.field if isinstance(error, UsageError) else None
        message = error.message if isinstance(error, UsageError) else str(error)
        raise CaseError(USER_ERROR, message, stage="plan", field=field) from error


def _shape(slots: list[Slot]) -> ClusterShape:
    cases = [slot.case for slot in slots]
    return ClusterShape(
        workers=max(case.workers for case in cases),
        replicas_per_worker=max(case.replicas for case in cases),
        cores_per_worker=max(case.cores_per_worker for case in cases),
        memory_bytes=max(case.memory_bytes for case in cases),
    )


def _job_in(cluster: Cluster, folder: RunFolder) -> Callable[..., object]:
    """Jobs in fresh processes of the first worker."""

    def job(function: str, args: tuple[object, ...], *, timeout_s: float, stage: str) -> object:
        log = folder.path / "logs" / f"{function.rpartition(':')[2]}.log"
        with cluster.open_session(1, [log]) as processes:
            return processes.call_one(0, function, args, timeout_s=timeout_s, stage=stage)

    return job


@contextmanager
def _study(target: Target, *, n_batches: int) -> Iterator[tuple[SoloProcess, Captures, Case]]:
    """A process of its own for one workload and strategy, and the case that they are."""
    case = Case(
        id="",
        workload=target.workload,
        strategy=target.strategy,
        provider="local",
        device="cpu",
        workers=target.workers,
        replicas=target.replicas,
        cores_per_worker=1,
        memory_bytes=0,
        rate_mbit=None,
        batch_rule="global",
        batch_size=_batch_size(target),
    )
    with TemporaryDirectory(prefix="stratbench-") as scratch:
        folder = Path(scratch)
        with solo_process(folder / "log") as process:
            captures = Captures(folder, process.call, seed=0, n_batches=n_batches, n_least=n_batches)
            try:
                yield process, captures, case
            except CaseError as error:
                if error.kind == USER_ERROR:
                    raise UsageError(error.message, field=error.field) from error
                raise


def _batch_size(target: Target) -> int | None:
    asked = target.workload.params.get("batch_size")
    return asked if isinstance(asked, int) else None


def _heading(made: Plan) -> dict[str, Any]:
    return {
        "workload": made.workload,
        "strategy": made.strategy,
        "strategy_params": dict(made.strategy_params),
        "class": made.strategy_class,
        "workers": len(made.replicas_per_task),
        "replicas": made.replicas_per_task[0],
    }


def _reason_to_stop(
    options: RunOptions, started_s: float, records: tuple[Record, ...]
) -> tuple[str, str] | None:
    if options.time_budget_s is not None and time.monotonic() - started_s >= options.time_budget_s:
        return (
            "time-budget",
            f"the time budget of {options.time_budget_s:g} s was used up; go on with --resume",
        )
    if options.fail_fast and any(record.status == "failed" for record in records):
        return "fail-fast", "an earlier case failed; mend it and go on with --resume"
    return None


def _write_report(folder: RunFolder) -> Path | None:
    if not folder.records:
        return None
    import reports

    return folder.write_report(reports.render([folder.path], "html"))


def _outcome(folder: RunFolder, report: Path | None) -> RunOutcome:
    records = folder.records
    n = {
        status: sum(r.status == status for r in records)
        for status in ("ok", "failed", "skipped", "implausible")
    }
    unequal = any(
        r.equivalence is not None and r.equivalence.equivalent is False and not r.control for r in records
    )
    exit_status = EXIT_CASE if n["failed"] or unequal else EXIT_OK
    if any(r.error is not None and r.error.type == USER_ERROR for r in records):
        exit_status = EXIT_USAGE
    return RunOutcome(
        run_dir=folder.path,
        report=report,
        n_ok=n["ok"],
        n_failed=n["failed"],
        n_skipped=n["skipped"],
        n_implausible=n["implausible"],
        exit_status=exit_status,
    )
