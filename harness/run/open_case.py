"""One case on fresh processes of its own: opened, checked, warmed up, timed in windows."""

from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from harness.equivalence.reference_outcome import Reference
from harness.errors import UNSUPPORTED, CaseError
from harness.experiment.spec import Measure
from harness.measure.collector import Measurement, Meter
from harness.measure.link import measured_links
from harness.measure.live import Moment
from harness.measure.observer_effect import observer_effect
from harness.measure.rounds import lead_steps, window_steps
from harness.measure.timeouts import USUAL, Timeouts
from harness.measure.traced_repeat import Traced, traced
from harness.provision.protocols import Cluster, ProcessSet
from harness.records.facts.costs import ObserverEffect
from harness.records.facts.links import MeasuredLink
from harness.records.facts.outcome import Equivalence
from harness.records.facts.rounds import Rounds
from harness.run import checkpoints
from harness.run.check import checked
from harness.run.ready import PreparedCase, ready_processes
from harness.worker.counters.memory import memory_left_bytes
from harness.worker.jobs import training
from harness.worker.jobs.batches import open_pipeline
from harness.worker.jobs.codec_time import codec_seconds
from harness.worker.jobs.training import Opened
from harness.worker.jobs.xla import compiled_clusters
from strategies.plan.schema import Plan
from workloads.data.worker_pipeline import WorkerShare


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRun:
    """What running a case once has shown.

    Attributes:
        opened: what each worker's program cost.
        notes: what updates took and dropped, where not all wait for all; why the case was run again.
        variable_bytes: in each worker's memory, slots included, as the workers' own tables tell.
        codec_s: see `harness.worker.jobs.codec_time`, of the slowest worker; None without a compressor.
        saved_step: number of steps before the checkpoint that was written; None if none was.
        observer: what measuring takes, by windows after all of that; None where nobody asked.
        traced: a step after all of that; None where none was asked for.
        links: what the workers' links carried before all of it; None where none is limited.
        rounds: what its windows came to beside those of others.
    """

    measurement: Measurement
    opened: tuple[Opened, ...]
    equivalence: Equivalence | None
    variable_bytes: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()
    codec_s: float | None = None
    saved_step: int | None = None
    observer: ObserverEffect | None = None
    traced: Traced | None = None
    links: tuple[MeasuredLink, ...] | None = None
    rounds: Rounds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """What one repeat of a case is to do.

    Attributes:
        reference: what to check the real workers' state against first; None checks nothing.
        number: of the repeat, to note with the check.
        checkpoint: folder for the state after the last step; None saves none.
    """

    prepared: PreparedCase
    reference: Reference | None
    number: int
    checkpoint: Path | None = None


class OpenCase:
    """A repeat of a case as it goes on; nothing of it runs once it is closed.

    Args:
        timeouts: for a model of no size.
    """

    def __init__(
        self, cluster: Cluster, repeat: Repeat, measure: Measure, timeouts: Timeouts = USUAL
    ) -> None:
        self.repeat = repeat
        self._cluster = cluster
        self._measure = measure
        plan = repeat.prepared.plan
        self._limits = timeouts.for_model(repeat.prepared.capture.summary, max(plan.replicas_per_task))
        self._period = plan.execution.period
        self._n_lead = lead_steps(self._period)
        self._n_steps = 0
        self._n_windows = 0
        self._stack = ExitStack()

    def open(self) -> None:
        """Start processes, check what they compute, and let them warm up.

        Raises:
            CaseError: it failed.
        """
        prepared, measure = self.repeat.prepared, self._measure
        self._processes, self._opened = self._stack.enter_context(
            ready_processes(self._cluster, prepared, self._limits)
        )
        self._links = measured_links(self._processes, prepared.case.shape.links)
        self._equivalence = (
            None
            if self.repeat.reference is None
            else checked(self._processes, self.repeat.reference, self.repeat.number, self._limits)
        )
        if measure.input == "pipeline":
            self._open_pipelines()
        self._meter = Meter(
            self._processes,
            batch_size=prepared.plan.batch_size,
            period=self._period,
            isolated=self._cluster.isolated,
            settles=prepared.plan.strategy_class == "statistical",
            timeouts=self._limits,
        )
        self._meter.warm_up("auto" if measure.warmup_steps is None else measure.warmup_steps)

    def window(self) -> float:
        """Make the steps of one window; return the median of those that are counted, in seconds.

        Raises:
            CaseError: it failed.
        """
        # A short warm-up tells little of steps to come; the first window does.
        if self._n_windows == 0 or (self._n_windows == 1 and self._measure.warmup_steps is not None):
            self._n_steps = self._window_steps()
        self._n_windows += 1
        return self._meter.window(self._n_steps, n_lead=self._n_lead)

    def moment(self, step_s: float, *, number: int, experiment: str) -> Moment:
        """The latest window, for those who look on.

        Args:
            step_s: its median step.
            number: of its round, from 1.
        """
        case, plan = self.repeat.prepared.case, self.repeat.prepared.plan
        n_steps = self._n_steps + self._n_lead
        return Moment(
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
            resident_bytes=self._meter.resident_bytes,
        )

    def memory_left_bytes(self) -> int | None:
        """Memory that the worker with the least of it can still give; None where none tells.

        Raises:
            CaseError: it failed.
        """
        args = [()] * len(self._processes.pids)
        left = self._processes.call(memory_left_bytes, args, timeout_s=self._limits.setup_s, stage="collect")
        return min((n_bytes for n_bytes in left if n_bytes is not None), default=None)

    def finish(self) -> CaseRun:
        """Look at all that can be seen after the last window.

        Raises:
            CaseError: it failed.
        """
        prepared, processes, limits = self.repeat.prepared, self._processes, self._limits
        measurement = self._meter.measurement()
        held = variable_bytes(processes, limits)
        notes = _update_notes(processes, prepared.plan, limits)
        saved_step = self._save(measurement)
        codec_s = _codec_s(processes, prepared.plan, limits)
        compiled = self._compiled() if prepared.case.computation.xla else ()
        observer = self._observer(measurement) if self._measure.observer else None
        last = self._traced(measurement, observer) if self._measure.trace else None
        return CaseRun(
            measurement=measurement,
            opened=self._opened,
            equivalence=self._equivalence,
            variable_bytes=held,
            codec_s=codec_s,
            notes=(*notes, *compiled),
            saved_step=saved_step,
            observer=observer,
            traced=last,
            links=self._links,
        )

    def discard_windows(self, n_windows: int | None = None) -> None:
        """Count the latest windows no more, or all of them."""
        self._meter.discard(n_windows)

    @property
    def window_shape(self) -> tuple[int, int]:
        """Counted steps of a window, and those that lead into it."""
        return self._n_steps, self._n_lead

    def close(self) -> None:
        """Kill its processes."""
        self._stack.close()

    def require_saved(self) -> None:
        """Look whether the checkpoint that was asked for is there, once the case is closed.

        Raises:
            CaseError: it is not.
        """
        if self.repeat.checkpoint is not None:
            checkpoints.require_saved(self.repeat.checkpoint)

    def _open_pipelines(self) -> None:
        """Have steps from now on take batches as workers' own pipelines make them."""
        prepared = self.repeat.prepared
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
        known_s = self._meter.median_s
        if known_s is None:
            return window_steps(0.0, window_s=0.0, least=least, period=self._period)
        return window_steps(known_s, window_s=measure.window_s, least=least, period=self._period)

    def _save(self, measurement: Measurement) -> int | None:
        folder, capture = self.repeat.checkpoint, self.repeat.prepared.capture
        if folder is None:
            return None
        before = 0 if capture.restored is None else capture.restored.step or 0
        step = before + measurement.warmup_steps + measurement.n_steps
        checkpoints.save(self._processes, capture.summary, self._cluster.seen(folder), step, self._limits)
        return step

    def _observer(self, measurement: Measurement) -> ObserverEffect:
        if self.repeat.prepared.case.chosen.strategy.runner == "coordinator":
            return ObserverEffect(why_none="TensorFlow's coordinator makes steps in a way of its own")
        return observer_effect(
            self._processes,
            measurement.steps,
            n_pairs=self._measure.n_rounds,
            window_shape=self.window_shape,
            settles=self.repeat.prepared.plan.strategy_class == "statistical",
            timeouts=self._limits,
        )

    def _compiled(self) -> tuple[str, ...]:
        """What XLA compiled of a step, in a sentence.

        Raises:
            CaseError: `unsupported`, where it compiled nothing.
        """
        found = self._processes.call(
            compiled_clusters,
            [(self._period,)] * len(self._processes.pids),
            timeout_s=self._limits.steps_s(self._period, []),
            stage="collect",
        )
        drawn = sorted({each for of_worker in found for each in of_worker.draws})
        if drawn:
            raise CaseError(
                UNSUPPORTED,
                "random numbers must be drawn outside of what XLA compiles, where they are the captured "
                f"step's, got {', '.join(drawn)} in a cluster; set measure.xla=false for this workload",
                stage="collect",
            )
        n_compiled = sum(each.n_compiled for each in found)
        if not n_compiled:
            raise CaseError(
                UNSUPPORTED,
                "XLA must compile a part of the step for measure.xla, got none of its operations in a "
                "cluster; set measure.xla=false for this workload",
                stage="collect",
            )
        n_clusters, n_left = sum(each.n_clusters for each in found), sum(each.n_left for each in found)
        clusters = f"{n_clusters} cluster{'' if n_clusters == 1 else 's'}"
        return (f"XLA compiled {n_compiled} operations in {clusters}, {n_left} are outside, on all workers",)

    def _traced(self, measurement: Measurement, observer: ObserverEffect | None) -> Traced:
        case = self.repeat.prepared.case
        if observer is not None and observer.failed:
            return Traced(note="no traced step: its processes failed before it, in windows of --observer")
        if case.chosen.strategy.runner != "graph":
            return Traced(note="no traced step: TensorFlow runs this strategy in a way of its own")
        title = f"{case.workload_name} {case.strategy}"
        return traced(
            self._processes,
            measurement,
            title=title,
            period=self._period,
            compiles=case.computation.xla,
            timeouts=self._limits,
        )


def variable_bytes(processes: ProcessSet, timeouts: Timeouts = USUAL) -> tuple[int, ...]:
    """Bytes of variables and slots in the memory of each worker of a session that has been loaded."""
    n_workers = len(processes.pids)
    held: dict[tuple[int, str], int] = {}
    for known in processes.call(
        training.held_bytes, [()] * n_workers, timeout_s=timeouts.setup_s, stage="collect"
    ):
        held |= known  # several workers know of what one serves
    return tuple(sum(n for (task, _), n in held.items() if task == worker) for worker in range(n_workers))


def _codec_s(processes: ProcessSet, plan: Plan, timeouts: Timeouts) -> float | None:
    if not any(node.compressor for node in plan.nodes):
        return None
    args = [(plan.model_dump_json(),)] * len(processes.pids)
    return max(processes.call(codec_seconds, args, timeout_s=timeouts.setup_s, stage="run"))


def _update_notes(processes: ProcessSet, plan: Plan, timeouts: Timeouts) -> tuple[str, ...]:
    if plan.strategy_class != "statistical":
        return ()
    notes = processes.call(
        training.update_notes, [()] * len(processes.pids), timeout_s=timeouts.setup_s, stage="collect"
    )
    return tuple(note for of_worker in notes for note in of_worker)
