"""Jobs of a training process: server, session, batches, steps, counters. The driver calls them by name.

`harness.worker.process.job_process` calls each with the state of its process. TensorFlow is imported by the
jobs that need it.
"""

import re
import resource
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from harness.errors import NON_FINITE_GRADIENTS, NON_FINITE_LOSS, CaseError
from harness.records.conditions import Placement
from harness.records.costs import PassCost
from harness.worker.counters.cores import CoreReading, read_cores
from harness.worker.jobs.gpus import require_devices
from harness.worker.jobs.refusals import refusals_as, unsupported
from harness.worker.jobs.rendezvous import InRing, Served
from harness.worker.process.job import JobState
from harness.worker.session import timed_loop
from harness.worker.session.timed_loop import ProcessFaults, StepTimes, in_turn, runs_of, seconds_unobserved
from harness.worker.variable_parts import Held
from strategies.plan.aggregation import TOO_FEW_FINITE

if TYPE_CHECKING:
    from harness.records.outcome import ReplicaResharding
    from harness.worker.session.session import WorkerSession
    from harness.worker.session.variable_memory import Holdings
    from strategies.plan.schema import Plan
    from strategies.program import Program

Batch = Sequence[npt.NDArray[np.generic]]
Loop: TypeAlias = Callable[[Sequence[Batch], int, int], StepTimes]
"""Staged batches, number of steps, index of the first → start and end of each step."""
_MAX_PREFETCH_S = 10.0


class StepSession(Protocol):
    """Session with a transformed step, for jobs; the defaults are for one step per run."""

    @property
    def steps_per_run(self) -> int | None:
        """Largest number of steps in one run; None if each step is its own run."""
        return None

    def load(self) -> None:
        """Give every variable its initial value."""

    def setup(self) -> None:
        """Run what a program needs once, after loading and before its first step."""
        return

    def prepare(self, batch: Batch) -> Batch:
        """Convert this worker's part of a batch to the input of `step`, outside of timed steps."""
        return batch

    def stage(self, batches: Sequence[Batch]) -> list[Batch]:
        """Prepare the batches that steps use in turn, and store them close to the replicas."""
        return list(map(self.prepare, batches))

    def step(self, feeds: Batch) -> Sequence[npt.NDArray[np.generic]]:
        """Run one step on a prepared part of a batch and return the loss of each local replica."""

    def steps(self, batches: Sequence[Batch]) -> npt.NDArray[np.generic]:  # noqa: ARG002 - none to run
        """Run a step on each of some batches in one run, if `steps_per_run` is not None.

        Returns:
            Losses, [n_steps, n_losses].
        """
        raise AssertionError("this session makes one step in a run")

    def read(self) -> Held:
        """Values of every copy of a variable on this worker."""

    def held_bytes(self) -> "Holdings":
        """Bytes in memory of all variables that this worker knows, on any worker."""

    def settle(self, n_workers: int) -> None:  # noqa: ARG002 - steps that update themselves need no wait
        """Wait until the variables contain all workers' contributions to their steps so far."""
        return

    def update_notes(self) -> tuple[str, ...]:
        """Sentences on contributions that this worker's updates have used and dropped so far."""
        return ()

    def resharding(self) -> "tuple[ReplicaResharding, ...]":
        """Resharding counts of each local replica."""
        return ()


@dataclass(slots=True, kw_only=True)
class Training:
    """A session and its batches.

    Attributes:
        weights: weight of each local replica's loss in the global loss: its share of the batch, or 1 in a
            sum.
        feeds: staged batches, this worker's part only, prepared.
        pipeline: iterator of prepared batches that steps take in place of staged ones; None if they take
            staged ones.
        loop: runs the steps in a special way; None if the session runs one after the other.
        faults: faults of this process.
        aggregation_counts: returns counts that rules made of workers' gradients; see
            `strategies.ir.train_graph.TrainGraph`.
    """

    session: StepSession
    task: int
    weights: tuple[float, ...]
    feeds: list[Batch] = field(default_factory=list)
    pipeline: Iterator[Batch] | None = None
    loop: Loop | None = None
    faults: ProcessFaults = field(default_factory=ProcessFaults)
    aggregation_counts: Callable[[], Sequence[npt.NDArray[np.generic]]] = tuple

    @property
    def step(self) -> Callable[[Batch], Sequence[npt.NDArray[np.generic]]]:
        """A step of the session, with the faults of this process."""
        return self.faults.around(self.session.step)


@dataclass(slots=True, frozen=True, kw_only=True)
class TimedSteps:
    """Steps of one worker.

    Attributes:
        weights: weight of each column of `times.losses` in the global loss; empty if another worker reports
            this one's steps.
        cores: counters of this process's cores before and after the steps; None if the kernel shows none.
        resident_bytes: memory of this process after the steps.
    """

    times: StepTimes
    weights: tuple[float, ...]
    cores: tuple[CoreReading, CoreReading] | None = None
    resident_bytes: int | None = None


@dataclass(slots=True, frozen=True, kw_only=True)
class Opened:
    """Program of a worker, and its cost.

    Attributes:
        start, stop: this worker's examples of the global batch.
        transform_s: seconds of all passes. import_s: seconds from a GraphDef to a session with a prepared
            step; if replicas compile, a first run included.
        nodes_before: nodes of the captured step. nodes_after: nodes of this worker's program. passes: costs
            of the passes, in order. All five are None if no graph is rewritten.
        input_placement: see `harness.records.conditions.Method`.
        notes: sentences on this program for the record.
    """

    start: int
    stop: int
    transform_s: float | None = None
    import_s: float | None = None
    nodes_before: int | None = None
    nodes_after: int | None = None
    passes: tuple[PassCost, ...] | None = None
    input_placement: Placement | None = None
    notes: tuple[str, ...] = ()


def open_program(
    state: JobState,
    capture: str,
    plan: "Plan",
    task: int,
    *,
    xla: bool = False,
    batches: str | None = None,
) -> Opened:
    """Transform a captured step for one task and import it into a session.

    A self-contained program runs on its own devices; others, and XLA's, run on this process's server.

    Args:
        capture: folder of the capture.
        xla: True if this process's sessions compile; see `harness.worker.jobs.xla`.
        batches: folder of the global batches, to stage those of replicas on GPUs there; None feeds each step.
    Raises:
        CaseError: `unsupported`, if the strategy cannot run this step; `no-device`, if TensorFlow made no
            devices of this worker's GPUs.
    """
    from harness.worker.session.capture_store import InitialValues, load_step
    from harness.worker.session.checkpoint import left_out
    from harness.worker.session.compiled_clusters import with_same_random_numbers
    from harness.worker.session.session import WorkerSession
    from harness.worker.session.tensorflow_settings import OWN_DEVICES
    from strategies.compile import compile_step

    folder = Path(capture)
    step = load_step(folder)
    with refusals_as(unsupported):
        compiled = compile_step(step, plan, task, check=False)
    program = compiled.program
    if xla:
        program = replace(program, graph_def=with_same_random_numbers(program.graph_def))
    started_s = time.monotonic()
    initial = InitialValues(folder)
    transport = state.get(InRing).ring if program.step.transfers else None
    # Without a server, TensorFlow does not report the content of functions that XLA compiles.
    target = OWN_DEVICES if program.self_contained and not xla else state.get(Served).target
    staged_on, too_large = _gpu_of_batches(plan, program, batches)
    session = WorkerSession(program, target, initial, transport, staged_on=staged_on)
    import_s = time.monotonic() - started_s
    weights = tuple(loss.weight for loss in program.step.losses)
    faults = [f for f in plan.faults if f.worker == task and f.place == "process"]
    state.put(
        Training(
            session=session,
            task=task,
            weights=weights,
            faults=ProcessFaults(faults=faults, passes=session.passes_next),
            aggregation_counts=session.aggregation_counts,
        )
    )
    return Opened(
        transform_s=compiled.seconds,
        import_s=import_s,
        nodes_before=program.nodes_before,
        nodes_after=program.nodes_after,
        passes=tuple(PassCost(name=t.name, seconds=t.seconds, nodes=t.nodes) for t in compiled.timings),
        start=program.start,
        stop=program.stop,
        input_placement=_placement(session, target, plan) if plan.device == "gpu" else None,
        notes=(*too_large, *left_out(program.variables, initial, {v.name for v in step.variables})),
    )


def _gpu_of_batches(
    plan: "Plan", program: "Program", batches: str | None
) -> tuple[str | None, tuple[str, ...]]:
    """The first GPU with staged batches; None, with a note on the reason, if they are fed."""
    from harness.worker.session.device_batches import too_large
    from strategies.planner import topology_of

    if plan.device != "gpu" or batches is None:
        return None, ()
    note = too_large(Path(batches), (program.stop - program.start) / plan.batch_size)
    if note is not None:
        return None, (note,)
    return topology_of(plan).local_replicas(program.task)[0].device, ()


def _placement(session: "WorkerSession", target: str, plan: "Plan") -> Placement:
    """Memory of a session's staged batches; the session must have its worker's GPUs."""
    from harness.worker.session.device_batches import on_gpus, placement
    from harness.worker.session.tensorflow_settings import listed_devices

    program = session.program
    names = listed_devices(program, target)
    require_devices(program.task, names, plan.replicas_per_task[program.task])
    return placement(on_gpus(session.staged, names))


def load(state: JobState) -> None:
    """Give every variable of this worker its initial value."""
    state.get(Training).session.load()


def setup(state: JobState) -> None:
    """Run what the program needs before its first step; every worker must have loaded."""
    state.get(Training).session.setup()


def stage(state: JobState, feeds: Sequence[Batch]) -> None:
    """Store batches for steps, in place of earlier ones."""
    training = state.get(Training)
    training.feeds = training.session.stage(feeds)


def run_steps(state: JobState, n_steps: int, first: int) -> TimedSteps:
    """Run steps `first`, `first + 1`, … on the staged batches, or on the next ones of the pipeline.

    Raises:
        CaseError: `non-finite-loss`, after the last step, or `non-finite-gradients`.
        UsageError: the dataset of the pipeline failed.
    """
    training = state.get(Training)
    before, began_s = read_cores(), time.time()
    with _aggregation_errors():
        times = _timed(training, n_steps, first)
    after = read_cores(began_s)
    _wait_for_prefetch(training, float((times.end_s - times.start_s).max()))
    finite = np.isfinite(times.losses)
    if not finite.all():
        index, column = (int(place[0]) for place in np.nonzero(~finite))
        raise CaseError(
            NON_FINITE_LOSS,
            f"worker {training.task}, step {first + index}: the loss is not finite: "
            f"{times.losses[index, column]}; lower the learning rate or check the data",
            stage="run",
        )
    cores = None if before is None or after is None else (before, after)
    return TimedSteps(times=times, weights=training.weights, cores=cores, resident_bytes=_resident_bytes())


@contextmanager
def _aggregation_errors() -> Iterator[None]:
    """Turn TensorFlow's error for a rule with too few gradients into one line."""
    try:
        yield
    except Exception as error:
        # TensorFlow's exception class is not imported here; other errors are raised again unchanged.
        match = re.search(rf"(rule=[^\]]*)\] \[({TOO_FEW_FINITE})\] \[([^\]]*)\] \[(\d+)\]", str(error))
        if match is None:
            raise
        raise CaseError(
            NON_FINITE_GRADIENTS,
            f"{' '.join(match.groups())}; lower the learning rate, or look for what makes gradients infinite",
            stage="run",
        ) from error


def _timed(training: Training, n_steps: int, first: int) -> StepTimes:
    if training.loop is not None:
        return training.loop(training.feeds, n_steps, first)
    n_losses, made_meanwhile = len(training.weights), training.pipeline is not None
    batches, steps_per_run = _batches(training, first), training.session.steps_per_run
    if steps_per_run is None:
        return timed_loop.run_steps(
            training.step, batches, n_steps=n_steps, n_losses=n_losses, made_meanwhile=made_meanwhile
        )
    return timed_loop.run_loops(
        training.session.steps,
        batches,
        n_steps=n_steps,
        n_losses=n_losses,
        steps_per_run=steps_per_run,
        made_meanwhile=made_meanwhile,
    )


def _wait_for_prefetch(training: Training, step_s: float) -> None:
    """Wait until a pipeline has filled its buffer, which would else take cores in other cases' windows.

    While no step runs, it needs at most the time between earlier steps for a batch.
    """
    if training.pipeline is not None:
        from workloads.data.examples import PREFETCH_BATCHES

        time.sleep(min(PREFETCH_BATCHES * step_s, _MAX_PREFETCH_S))


def unobserved_steps(state: JobState, n_steps: int, n_lead: int, first: int) -> float:
    """Run steps without timing each; return seconds per step, see `seconds_unobserved`."""
    training = state.get(Training)
    batches, per_run = _batches(training, first), training.session.steps_per_run
    if per_run is None:
        step_s = seconds_unobserved(training.step, batches, n_steps=n_steps, n_lead=n_lead)
    else:
        n_runs, n_lead_runs = -(-n_steps // per_run), -(-n_lead // per_run)
        runs, steps = runs_of(batches, per_run), training.session.steps
        step_s = seconds_unobserved(steps, runs, n_steps=n_runs, n_lead=n_lead_runs) / per_run
    _wait_for_prefetch(training, step_s)
    return step_s


def _batches(training: Training, first: int) -> Iterator[Batch]:
    return in_turn(training.feeds, first) if training.pipeline is None else training.pipeline


def settle(state: JobState, n_workers: int) -> None:
    """Wait until the variables contain all workers' contributions to their steps so far."""
    state.get(Training).session.settle(n_workers)


def read_variables(state: JobState) -> Held:
    """Values of every copy of a variable on this worker."""
    return state.get(Training).session.read()


def held_bytes(state: JobState) -> "Holdings":
    """Bytes in memory of all variables that this worker knows, on any worker."""
    return state.get(Training).session.held_bytes()


def update_notes(state: JobState) -> tuple[str, ...]:
    """Sentences for the record on contributions that this worker's updates have used and dropped so far."""
    return state.get(Training).session.update_notes()


def resharding(state: JobState) -> "tuple[ReplicaResharding, ...]":
    """Resharding counts of each replica of this worker; empty without resharding."""
    return state.get(Training).session.resharding()


def _resident_bytes() -> int | None:
    try:
        n_pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return None
    return n_pages * resource.getpagesize()


def peak_rss_bytes(state: JobState) -> int | None:
    """Largest resident memory of this process so far, pages shared with the fork server included."""
    del state
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    return None
