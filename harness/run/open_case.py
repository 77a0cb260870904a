"""One case in its own new processes: opened, checked, warmed up, timed in windows."""

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace

from harness.errors import CaseError, first_line
from harness.experiment.cases import CONTROL
from harness.experiment.model import Measure
from harness.measure.collector import Collector, Measurement, observer_effect
from harness.measure.link import measured_links
from harness.measure.live import WindowProgress
from harness.measure.timeouts import USUAL, Timeouts
from harness.measure.traced_step import Traced, traced
from harness.measure.windows import lead_steps, timed_unit, window_steps
from harness.prediction.profile import StepProfile
from harness.provision.protocols import Cluster, ProcessSet
from harness.records.costs import MeasuredLink, ObserverEffect
from harness.records.outcome import Aggregated, Equivalence, Evaluation, Resharding, Rounds
from harness.run import checkpoints
from harness.run.process_setup import PreparedCase, ready_processes
from harness.run.worker_figures import (
    aggregated,
    compiled_notes,
    last_values,
    memory_left_bytes,
    resharding,
    slowest_codec_s,
    update_notes,
    variable_bytes,
)
from harness.verification.captures import OWN_LOOP
from harness.verification.checks import checked
from harness.verification.verdict import Verdict
from harness.worker.jobs.batches import open_pipeline
from harness.worker.jobs.step_profile import N_STEPS, step_profile
from harness.worker.jobs.training import Opened
from harness.worker.variable_parts import Array
from workloads.data.examples import WorkerShare


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRun:
    """Results of running a case once.

    Attributes:
        opened: program of each worker, and its cost.
        notes: counts of used and dropped updates, if not all wait for all; reason for a second attempt.
        variable_bytes: bytes in each worker's memory, slots included, from the workers' own tables.
        codec_s: see `harness.worker.jobs.after_repeats`; that of the slowest worker, None without a
            compressor.
        saved_step: number of steps before the saved checkpoint; None if none was saved.
        observer: overhead of measuring, from windows after all others; None if not requested.
        traced: step traced after all others; None if not requested.
        doubt: verdict of its check if it is in doubt, for more references.
        profile: profile of its steps; None if they exchange anything, or none was requested.
        links: measured rates of the workers' links, before all steps; None if none is limited.
        rounds: its windows, and the baseline's in the same rounds.
        resharding: resharding of variables around host loops; None if nothing is partitioned.
        aggregation: aggregation of gradients by a rule; None if they are added up.
        values: variables after the last step, by name; None if the model is not evaluated.
        evaluation: result of the evaluation.
        start_s, check_s, warmup_s: see `Preparation`.
    """

    measurement: Measurement
    opened: tuple[Opened, ...]
    equivalence: Equivalence | None
    doubt: Verdict | None = None
    variable_bytes: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()
    codec_s: float | None = None
    saved_step: int | None = None
    observer: ObserverEffect | None = None
    traced: Traced | None = None
    profile: StepProfile | None = None
    links: tuple[MeasuredLink, ...] | None = None
    rounds: Rounds | None = None
    resharding: Resharding | None = None
    aggregation: Aggregated | None = None
    values: Mapping[str, Array] | None = None
    evaluation: Evaluation | None = None
    start_s: float = 0.0
    check_s: float | None = None
    warmup_s: float = 0.0


class OpenCase:
    """A repeat of a case in progress; its processes end when it is closed.

    Args:
        timeouts: limits for a model of size zero.
    """

    def __init__(
        self, cluster: Cluster, repeat: PreparedCase, measure: Measure, timeouts: Timeouts = USUAL
    ) -> None:
        self.repeat = repeat
        self._cluster = cluster
        self._measure = measure
        plan = repeat.plan
        limits = timeouts.for_model(repeat.capture.summary, max(plan.replicas_per_task))
        self._limits = limits.for_faults(plan.faults)
        self._period = plan.execution.period
        self._cycle = plan.execution.cycle
        self._n_lead = lead_steps(self._cycle)
        self._n_steps = 0
        self._n_windows = 0
        self._equivalence: Equivalence | None = None
        self._doubt: Verdict | None = None
        self._check_s: float | None = None
        self._stack = ExitStack()

    def open(self) -> None:
        prepared, measure = self.repeat, self._measure
        begun_s = time.monotonic()
        if prepared.case.shape.hardware == "gpu" and prepared.reference is not None:
            # Kernels keep the arithmetic of their first step; see `arithmetic.compute_exactly`.
            with ready_processes(self._cluster, prepared, self._limits, are_checked=True) as (processes, _):
                self._check(processes)
        self._processes, self._opened = self._stack.enter_context(
            ready_processes(self._cluster, prepared, self._limits)
        )
        self._links = measured_links(self._processes, prepared.case.shape.links, self._limits)
        if self._equivalence is None:
            self._check(self._processes)
        warming_s = time.monotonic()
        if measure.input == "pipeline":
            self._open_pipelines()
        self._collector = Collector(
            self._processes,
            batch_size=prepared.plan.batch_size,
            period=self._cycle,
            averaging_period=self._period,
            whole_windows=timed_unit(prepared.plan.execution) == "window",
            isolated=not self._cluster.facts().exposed,
            settles=prepared.plan.strategy_class == "statistical",
            timeouts=self._limits,
        )
        self._collector.warm_up(measure.warmup_steps)
        self._start_s = warming_s - begun_s - (self._check_s or 0.0)
        self._warmup_s = time.monotonic() - warming_s

    def window(self) -> float:
        # A short warm-up predicts later steps badly; the first window is better.
        if self._n_windows == 0 or (self._n_windows == 1 and self._measure.warmup_steps != "auto"):
            self._n_steps = self._window_steps()
        self._n_windows += 1
        step_s = self._collector.window(self._n_steps, n_lead=self._n_lead)
        if step_s <= 0:
            raise CaseError(
                "clock-changed",
                f"the machine's clock was set back during the steps: their median is {step_s:g} s; continue "
                "with --resume",
                stage="run",
            )
        return step_s

    def moment(self, step_s: float, *, number: int, experiment: str) -> WindowProgress:
        """Figures of the latest window, for live metrics.

        Args:
            step_s: median step of the window, in seconds.
            number: number of its round, from 1.
        """
        case, plan = self.repeat.case, self.repeat.plan
        n_steps = self._n_steps + self._n_lead
        return WindowProgress(
            experiment=experiment,
            case=case.id,
            workload=str(case.workload),
            strategy=str(replace(case.strategy, name=case.chosen.strategy.name)),
            provider=case.shape.provider,
            device=case.shape.device,
            precision=case.computation.precision,
            xla=case.computation.xla,
            input=self._measure.input,
            n_rounds=number,
            n_all_rounds=self._measure.n_rounds,
            examples_per_s=plan.batch_size / step_s,
            n_steps=n_steps,
            payload_bytes=plan.payload_bytes_per_step * n_steps,
            resident_bytes=self._collector.resident_bytes,
        )

    def memory_left_bytes(self) -> Mapping[str, int]:
        return memory_left_bytes(self._processes, self._limits)

    def finish(self) -> CaseRun:
        prepared, processes, limits = self.repeat, self._processes, self._limits
        measurement = self._collector.measurement()
        sizes = variable_bytes(processes, limits)
        notes = update_notes(processes, prepared.plan, limits)
        saved_step = self._save(measurement)
        reshardings = resharding(processes, prepared.plan, limits)
        by_rule = aggregated(processes, prepared.plan, prepared.capture.summary, limits)
        values = last_values(processes, prepared.capture.summary, limits) if self._measure.evaluate else None
        compiled = compiled_notes(processes, self._period, limits) if prepared.case.computation.xla else ()
        codec_s, not_timed = slowest_codec_s(processes, prepared.plan, limits)
        observer = self._observer(measurement) if self._measure.observer else None
        profile, not_profiled = self._profile()
        on_gpus = prepared.plan.device == "gpu"
        last = self._traced(measurement, observer) if self._measure.trace or on_gpus else None
        return CaseRun(
            measurement=measurement,
            opened=self._opened,
            equivalence=self._equivalence,
            doubt=self._doubt,
            variable_bytes=sizes,
            codec_s=codec_s,
            notes=(*notes, *compiled, *not_timed, *not_profiled),
            saved_step=saved_step,
            observer=observer,
            profile=profile,
            traced=last if self._measure.trace or last is None else Traced(note=last.note),
            links=self._links,
            resharding=reshardings,
            aggregation=by_rule,
            values=values,
            start_s=self._start_s,
            check_s=self._check_s,
            warmup_s=self._warmup_s,
        )

    def discard_windows(self, n_windows: int | None = None) -> None:
        """Discard the latest windows, or all of them."""
        self._collector.discard(n_windows)

    @property
    def window_shape(self) -> tuple[int, int]:
        return self._n_steps, self._n_lead

    def close(self) -> None:
        self._stack.close()

    def require_saved(self) -> None:
        if self.repeat.checkpoint is not None:
            checkpoints.require_saved(self.repeat.checkpoint)

    def _check(self, processes: ProcessSet) -> None:
        if self.repeat.reference is not None:
            begun_s = time.monotonic()
            self._equivalence, self._doubt = checked(
                processes,
                self.repeat.reference,
                self.repeat.number,
                self._limits,
                strategy_class=self.repeat.plan.strategy_class,
                steps_per_loop=self.repeat.plan.execution.steps_per_loop,
            )
            self._check_s = time.monotonic() - begun_s

    def _open_pipelines(self) -> None:
        prepared = self.repeat
        shares = [
            WorkerShare(
                worker=worker,
                n_workers=len(self._opened),
                n_examples=opened.stop - opened.start,
                global_batch=prepared.plan.batch_size,
            )
            for worker, opened in enumerate(self._opened)
        ]
        args = [(prepared.case, prepared.seed, share) for share in shares]
        self._processes.call(open_pipeline, args, timeout_s=self._limits.capture_s, stage="input")

    def _window_steps(self) -> int:
        measure = self._measure
        least = -(-measure.steps // measure.n_rounds)
        known_s = self._collector.median_s
        if known_s is None:
            return window_steps(0.0, window_s=0.0, least=least, period=self._cycle)
        return window_steps(known_s, window_s=measure.window_s, least=least, period=self._cycle)

    def _save(self, measurement: Measurement) -> int | None:
        folder, capture = self.repeat.checkpoint, self.repeat.capture
        if folder is None:
            return None
        before = 0 if capture.restored is None else capture.restored.step or 0
        step = before + measurement.warmup_steps + measurement.n_steps
        checkpoints.save(
            self._processes, capture.summary, self._cluster.worker_path(folder), step, self._limits
        )
        return step

    def _observer(self, measurement: Measurement) -> ObserverEffect:
        if self.repeat.case.chosen.strategy.runner == "coordinator":
            return ObserverEffect(why_none=f"steps are run by {OWN_LOOP}")
        return observer_effect(
            self._processes,
            measurement.steps,
            n_pairs=self._measure.n_rounds,
            window_shape=self.window_shape,
            settles=self.repeat.plan.strategy_class == "statistical",
            timeouts=self._limits,
        )

    def _profile(self) -> tuple[StepProfile | None, tuple[str, ...]]:
        """Profile of the first worker's steps, and a note on the reason if there is none."""
        prepared, measure = self.repeat, self._measure
        if not measure.trace or measure.input == "pipeline" or prepared.plan.strategy != CONTROL:
            return None, ()
        args = [(str(self._cluster.worker_path(prepared.capture.folder)), prepared.plan)] * len(self._opened)
        limit_s = self._limits.setup_s + self._limits.steps_s(N_STEPS + 1, [])
        try:
            return self._processes.call(step_profile, args, timeout_s=limit_s, stage="collect")[0], ()
        except CaseError as error:
            return None, (f"no profile of the step: {first_line(str(error))}",)

    def _traced(self, measurement: Measurement, observer: ObserverEffect | None) -> Traced:
        case, plan = self.repeat.case, self.repeat.plan
        if observer is not None and observer.failed:
            return Traced(note="no traced step: its processes failed earlier, in the windows of --observer")
        if case.chosen.strategy.runner_on(case.shape.hardware) != "graph":
            return Traced(note=f"no traced step: steps are run by {OWN_LOOP}")
        title = f"{case.workload_name} {case.strategy}"
        return traced(
            self._processes,
            measurement,
            title=title,
            gpus_per_worker=plan.replicas_per_task if plan.device == "gpu" else (),
            period=self._period,
            compiles=case.computation.xla,
            timeouts=self._limits,
        )
