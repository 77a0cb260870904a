"""Stages of all commands but `probe`, `predict` and `recommend`, which are in `harness.foresight`.

They are in order: no stage knows later ones or calls back into earlier ones.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from socket import socket
from typing import TYPE_CHECKING

from harness.canonical import JsonValue
from harness.errors import (
    EXIT_CASE,
    EXIT_MISSING,
    EXIT_OK,
    EXIT_USAGE,
    HarnessError,
    Interrupted,
    StoreError,
    UsageError,
    is_disk_full,
)
from harness.experiment.cases import CONTROL, Case, expand
from harness.experiment.model import Experiment
from harness.experiment.schedule import Slot, schedule
from harness.host_facts import environment
from harness.planned_target import (
    Planned,
    PlannedTarget,
    Verified,
    capture_and_plan,
    gpus_of_workers,
    is_baseline,
    refuse_what_workers_lack,
    require_last_batch,
    shape_of,
    verify_on_workers,
)
from harness.prediction.slices import slice_cost
from harness.provision.failures import USER_ERROR
from harness.records.predictions import drop_predictions
from harness.records.record import Record
from harness.records.results_file import DAMAGED
from harness.records.run_folder import RunFolder, done_in, open_run, recorded_in, records_in
from harness.requests import (
    Dtype,
    PlanRequest,
    RunOptions,
    TransformRequest,
    VerifyRequest,
)
from harness.run.checkpoints import require
from harness.run.clusters import run_slots
from harness.run.failure_causes import run_folder_errors
from harness.run.further_repeats import NarrowRatios
from harness.run.progress import Progress, StatusLine, rough_seconds
from harness.run.resume import changed_files, outdated_records, require_placements, require_timed_units
from harness.run_predictions import predict_measured
from harness.verification.captures import certain_refusal, rule_refusal
from harness.verification.verification import RANDOM_NOTE, Verification
from harness.verification.worker.jobs import StoredSteps
from harness.verification.worker.jobs import verify as verify_plan
from harness.worker.jobs.transform import Transformation, Wanted
from harness.worker.jobs.transform import transform as transform_plan
from strategies.planner import payload_matrix

if TYPE_CHECKING:
    from harness.measure.prometheus import Exporter


@dataclass(frozen=True, kw_only=True, slots=True)
class Written:
    """A report, and its results for a terminal.

    Attributes:
        path: None if it could not be written; `problem` has the reason.
        unpredicted: reasons why cases could not be predicted; empty if there are none.
    """

    path: Path | None
    text: str = ""
    problem: HarnessError | None = None
    unpredicted: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunOutcome:
    """Folder of a run's results, and numbers of its cases by outcome.

    Args:
        run_dir: None for a dry run, which makes no folder.
        report: None if nothing was recorded.
        cases: cases that a dry run would have run, in matrix order; else empty.
        skipped: ids of those cases that will not run.
        done: case and number of the repeats that the run folder has already.
        n_repeats: repeats of each of these cases. until_ci: see `harness.records.record.Method`.
        notes: lines to print.
        checkpoints: folders of saved checkpoints.
    """

    run_dir: Path | None
    report: Written | None = None
    n_ok: int = 0
    n_failed: int = 0
    n_skipped: int = 0
    n_implausible: int = 0
    exit_status: int = EXIT_OK
    cases: tuple[Case, ...] = ()
    skipped: frozenset[str] = frozenset()
    done: frozenset[tuple[str, int]] = frozenset()
    n_repeats: int = 0
    until_ci: float | None = None
    notes: tuple[str, ...] = ()
    checkpoints: tuple[Path, ...] = ()

    def n_left(self, case: Case) -> int:
        """Repeats that a dry run would have run of one of its cases."""
        repeats = () if case.id in self.skipped else range(self.n_repeats)
        return sum((case.id, repeat) not in self.done for repeat in repeats)

    def to_document(self) -> dict[str, JsonValue]:
        document: dict[str, JsonValue] = {
            "run_dir": str(self.run_dir) if self.run_dir else None,
            "report": str(self.report.path) if self.report and self.report.path else None,
            "cases": {
                "ok": self.n_ok,
                "failed": self.n_failed,
                "skipped": self.n_skipped,
                "implausible": self.n_implausible,
            },
            "exit_status": self.exit_status,
        }
        if self.cases:
            document["planned"] = [case.id for case in self.cases if self.n_left(case)]
        if self.notes:
            document["notes"] = list(self.notes)
        return document


def outcome_of(folder: RunFolder, written: Written | None) -> RunOutcome:
    """Outcome of the run in a folder.

    Args:
        written: the run's report; None if nothing was recorded.
    """
    records = folder.records
    problem = None if written is None else written.problem
    n = {
        status: sum(r.status == status for r in records)
        for status in ("ok", "failed", "skipped", "implausible")
    }
    return RunOutcome(
        run_dir=folder.path,
        report=written,
        n_ok=n["ok"],
        n_failed=n["failed"],
        n_skipped=n["skipped"],
        n_implausible=n["implausible"],
        exit_status=_exit_status(records, problem),
        checkpoints=tuple(
            folder.path / r.checkpoint.saved for r in records if r.checkpoint and r.checkpoint.saved
        ),
        notes=(
            *(
                f"results.jsonl line {line.number}: {'; '.join(line.why)}; put aside in {DAMAGED}, so that "
                "its repeat runs again"
                for line in folder.put_aside
            ),
            *(() if problem is None else (f"no report: {problem.message}",)),
            *((f"not predicted: {written.unpredicted}",) if written and written.unpredicted else ()),
        ),
    )


def _exit_status(records: tuple[Record, ...], problem: HarnessError | None) -> int:
    if problem is not None:
        return EXIT_MISSING if is_disk_full(problem) else problem.exit_status
    if any(r.error is not None and r.error.type == USER_ERROR for r in records):
        return EXIT_USAGE
    wrong = any(r.equivalence is not None and r.equivalence.wrong and not r.control for r in records)
    failed = any(r.status == "failed" and not r.is_broken_by_faults for r in records)
    return EXIT_CASE if wrong or failed else EXIT_OK


def run(spec: Experiment, options: RunOptions) -> RunOutcome:
    """Run an experiment: every repeat of every case on fresh processes, recorded as it ends.

    Raises:
        UsageError: no case can be run, or the run folder or the checkpoint cannot be used.
        ProvisionError: workers cannot be had here.
    """
    cases = expand(spec)
    _require_time(spec, options.time_budget_s)
    refusals = {case.id: refusal for case in cases if (refusal := certain_refusal(case)) is not None}
    beyond = [refusal for case in cases if (refusal := rule_refusal(case)) is not None]
    if len(beyond) == len(cases):
        raise UsageError(f"no case can be run: {beyond[0]}", field="strategies")
    if len(refusals) == len(cases):
        first = cases[0]
        raise UsageError(f"no case can be run: {first.strategy}: {refusals[first.id]}", field="strategies")
    if spec.checkpoint.restore is not None:
        require(spec.checkpoint.restore)
    if options.dry_run:
        return _dry_run(spec, options, cases, refusals)
    with _opened(spec, options) as folder:
        slots = schedule(
            cases,
            repeats=spec.measure.repeats,
            seed=spec.measure.seed,
            interleave=spec.measure.interleave,
            is_control=lambda case: case.chosen.strategy.strategy_class == "control",
        )
        until = spec.measure.until
        then = None if until is None else NarrowRatios(spec=spec, until=until)
        return outcome_of(folder, _carry_out(slots, cases, spec, options, folder, then))


def verify(request: VerifyRequest) -> Verified:
    """Check a strategy against the single-device reference; see `stratbench verify`.

    Raises:
        UsageError: the target cannot be used. CaseError: the check could not be made.
    """
    on_workers = is_baseline(request.target.strategy) or request.target.device == "gpu"
    if on_workers:
        refuse_what_workers_lack(request)
        gpus_of_workers(shape_of(request.target))  # before anything is captured
    dtype = request.dtype or ("model" if on_workers else "float64")
    if request.restore is not None:
        require(request.restore)
    n_steps, status = request.steps, StatusLine(live=request.live)
    with capture_and_plan(
        request.target,
        n_batches=n_steps,
        restore=request.restore,
        timeouts=request.timeouts,
        checks_capture=True,
        status=status,
    ) as opened:
        compared = f"{n_steps} steps of {request.target.strategy} and of the single-device reference"
        with status.doing(f"running {compared} in {dtype}"):
            verification = (
                verify_on_workers(opened, n_steps) if on_workers else _verify_graph(opened, request, dtype)
            )
        draws = opened.capture.facts.draws and verification.is_held_to_the_reference
        return Verified(
            plan=opened.plan,
            steps=n_steps,
            dtype=dtype,
            restored=opened.capture.restored,
            last_batch=request.last_batch,
            verification=replace(
                verification,
                capture=opened.capture.facts.verdict,
                notes=(*verification.notes, *([RANDOM_NOTE] if draws else [])),
            ),
        )


def _verify_graph(opened: PlannedTarget, request: VerifyRequest, dtype: Dtype) -> Verification:
    if request.last_batch is not None:
        require_last_batch(request.last_batch, opened.plan, opened.capture.facts)
    steps = StoredSteps(
        capture=opened.capture.folder,
        batches=opened.batches,
        n_steps=request.steps,
        float64=dtype == "float64",
        last_batch=request.last_batch,
    )
    return opened.call(verify_plan, (steps, opened.plan, request.shrink))


def plan(request: PlanRequest) -> Planned:
    """Plan a strategy: places of variables and predicted bytes; see `stratbench plan`.

    Raises:
        UsageError: the target cannot be used. CaseError: it could not be captured.
    """
    with capture_and_plan(
        request.target, timeouts=request.timeouts, n_batches=1, status=StatusLine(live=request.live)
    ) as opened:
        plan, capture = opened.plan, opened.capture
        return Planned(
            plan=plan,
            slice_cost=None if request.slice is None else slice_cost(request.slice, plan, capture.summary),
            matrix=payload_matrix(plan, capture.summary) if request.matrix else None,
        )


def transform(request: TransformRequest) -> Transformation:
    """A strategy's passes applied for one worker; see `stratbench transform`.

    Raises:
        UsageError: the target cannot be used. CaseError: it could not be captured or transformed.
    """
    if is_baseline(request.target.strategy):
        raise UsageError(
            f"must be one that rewrites the graph, got {request.target.strategy.name}, which runs the "
            "workload's own code under TensorFlow; `run` takes it",
            field="strategy",
        )
    status = StatusLine(live=request.live)
    with capture_and_plan(request.target, timeouts=request.timeouts, n_batches=1, status=status) as opened:
        wanted = Wanted(
            graphdef=None if request.graphdef is None else request.graphdef.absolute(),
            stages=None if request.stages is None else request.stages.absolute(),
            text=request.text,
        )
        args = (str(opened.capture.folder), opened.plan, request.rank, wanted)
        with status.doing(f"rewriting the graph of worker {request.rank} for {request.target.strategy}"):
            return opened.call(transform_plan, args)


def _dry_run(
    spec: Experiment, options: RunOptions, cases: tuple[Case, ...], refusals: Mapping[str, str]
) -> RunOutcome:
    records: tuple[Record, ...] = ()
    if options.out is not None:
        records = records_in(options.out, experiment=spec.to_document(), resume=options.resume)
    outdated = _outdated(records, cases)
    until = spec.measure.until
    return RunOutcome(
        run_dir=None,
        cases=cases,
        skipped=frozenset(refusals),
        done=done_in(record for record in records if record not in outdated),
        n_repeats=spec.measure.repeats,
        until_ci=None if until is None else until.ratio_ci,
        notes=(*_nothing_to_resume(options, records), *_skipped(cases, refusals)),
    )


def _outdated(records: Sequence[Record], cases: Sequence[Case]) -> tuple[Record, ...]:
    outdated = outdated_records(records, cases)
    current = [record for record in records if record not in outdated]
    require_placements(current, cases)
    require_timed_units(current, cases)
    return outdated


def _nothing_to_resume(options: RunOptions, records: Sequence[Record]) -> tuple[str, ...]:
    is_new = options.resume and not records
    return (f"nothing to resume in {options.out}: beginning a new run",) if is_new else ()


def _skipped(cases: Sequence[Case], refusals: Mapping[str, str]) -> tuple[str, ...]:
    """One line with the reason for each strategy of cases that will not run."""
    refused = {(str(case.strategy), refusals[case.id]) for case in cases if case.id in refusals}
    return tuple(f"will be skipped: {strategy}: {refusal}" for strategy, refusal in sorted(refused))


def _opened(spec: Experiment, options: RunOptions) -> RunFolder:
    return open_run(
        options.out,
        experiment=spec.to_document(),
        environment=environment(options.environ, command=options.command),
        resume=options.resume,
    )


def _carry_out(
    slots: Sequence[Slot],
    cases: Sequence[Case],
    spec: Experiment,
    options: RunOptions,
    folder: RunFolder,
    then: NarrowRatios | None,
) -> Written | None:
    """Run the remaining repeats and any further ones; write the report, however the run ends.

    Raises:
        Interrupted: a signal arrived; the message says how to continue.
    """
    nothing_to_resume = _nothing_to_resume(options, folder.records)
    outdated = _outdated(folder.records, cases)
    with run_folder_errors(folder.path):
        folder.forget(outdated)
        if outdated:
            # Predictions of all cases depend on the profiles of the controls.
            depend = cases if any(record.strategy == CONTROL for record in outdated) else ()
            drop_predictions(folder.path, {record.case for record in outdated} | {case.id for case in depend})
    changed = changed_files(outdated, cases)
    left = [slot for slot in slots if (slot.case.id, slot.repeat) not in folder.done]
    progress = Progress(
        max(len(slots), len(folder.records)),
        n_left=len(left),
        live=options.live,
        quiet=options.quiet,
    )
    for note in nothing_to_resume:
        progress.note(note)
    if changed:
        progress.note(
            f"repeats that run again, with their checks: {len(outdated)}; changed since: {', '.join(changed)}"
        )
    try:
        # A run interrupted during further repeats continues with them.
        if left or then is not None:
            progress.begin(len({slot.case.id for slot in left}), rough_seconds(left, spec))
            with _exporter(options.metrics, spec.name, progress) as exporter:
                run_slots(left, cases, spec, options, folder, progress, exporter, then)
    except BaseException as error:
        # An interrupted run also gets a report; but the interruption is the error to raise.
        with contextlib.suppress(Exception):
            _write_report(folder, is_complete=False)
        if isinstance(error, KeyboardInterrupt):
            way_out = (
                f"interrupted; results so far are kept, repeat the command with --out {folder.path} --resume"
            )
            raise Interrupted(way_out) from None
        raise
    progress.stage("report", str(folder.path))
    try:
        slots_of_run = {(slot.case.id, slot.repeat) for slot in slots}
        return _write_report(folder, is_complete=slots_of_run <= recorded_in(folder.records))
    except KeyboardInterrupt:
        raise Interrupted(
            f"interrupted; results are kept, write the report by `stratbench report {folder.path}`"
        ) from None


def _require_time(spec: Experiment, budget_s: float | None) -> None:
    """Refuse windows longer than the time budget, which is checked only between repeats."""
    measure = spec.measure
    windows_s = measure.n_rounds * measure.window_s
    if budget_s is not None and windows_s > budget_s:
        raise UsageError(
            f"must hold one case's windows of a repeat, {measure.n_rounds} of {measure.window_s:g} s, got "
            f"{budget_s:g} s; lower measure.window_s or measure.rounds, or give it more",
            field="time-budget",
        )


@contextlib.contextmanager
def _exporter(metrics: socket | None, experiment: str, progress: Progress) -> "Iterator[Exporter | None]":
    if metrics is None:
        yield None
        return
    from harness.measure.prometheus import serve_metrics
    from reports.rows.row import repeat_gauges

    with serve_metrics(metrics, experiment, repeat_gauges(), progress.note) as exporter:
        yield exporter


def _write_report(folder: RunFolder, *, is_complete: bool) -> Written | None:
    """Write the report of a run, with predictions if no repeat is missing, whose profiles they need."""
    if not folder.records:
        return None
    import reports

    unpredicted = predict_measured(folder.path) if is_complete else ""
    report = reports.report_of(folder.path)
    try:
        with run_folder_errors(folder.path, way_out=f"write it by `stratbench report {folder.path}`"):
            path = folder.write_report(report.html)
            return Written(path=path, text=report.text, unpredicted=unpredicted)
    except StoreError as error:
        return Written(path=None, text=report.text, problem=error)
