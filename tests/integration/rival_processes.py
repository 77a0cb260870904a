"""Real processes of TensorFlow's own strategies, for tests: started once, for one workload or several."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest

from harness.cluster import ClusterShape
from harness.experiment.cases import Case
from harness.experiment.references import parse_strategy, parse_workload
from harness.planned_target import SEED
from harness.provision.child_processes import LocalWorkers, child_process
from harness.provision.protocols import ProcessSet
from harness.run.process_setup import serving_processes
from harness.verification.captures import Capture, Captures, planned
from harness.verification.checks import first_steps, reference_of
from harness.verification.reference import Outcome, Reference
from harness.verification.verdict import Verdict
from harness.worker.jobs.batches import stage_batches
from harness.worker.jobs.distributed.compiled_replicas import open_replicas
from harness.worker.jobs.distributed.parameter_server import open_coordinated, start_cluster
from harness.worker.jobs.distributed.synchronous import open_baseline
from harness.worker.jobs.distributed.workload import start_distribution
from harness.worker.jobs.training import load
from harness.worker.process.job import Job
from strategies.plan.schema import Plan

SERVERS = "tf-parameter-server"


@contextmanager
def captures_in(folder: Path, *, n_batches: int, n_least: int) -> Iterator[Captures]:
    """Captures of all workloads by one process, which ends with the context."""
    with child_process(folder) as process:
        yield Captures(folder, process.call, seed=SEED, n_batches=n_batches, n_least=n_least)


@dataclass(frozen=True, kw_only=True)
class Study:
    """A captured case, with jobs that prepare processes and judge their steps."""

    captures: Captures
    case: Case

    @classmethod
    def of(cls, captures: Captures, workload: str, strategy: str, shape: ClusterShape) -> "Study":
        case = Case(
            id="",
            workload=parse_workload(workload, field="workload"),
            strategy=parse_strategy(strategy, field="strategy"),
            shape=shape,
        )
        return cls(captures=captures, case=case)

    @property
    def capture(self) -> Capture:
        return planned(self.captures, self.case)[0]

    @property
    def plan(self) -> Plan:
        return planned(self.captures, self.case)[1]

    @property
    def batches(self) -> Path:
        return self.captures.batches(self.case, self.capture)

    def make_ready(self, processes: ProcessSet) -> None:
        """Build the workload in all workers, with its first batches staged and its initial values loaded."""
        plan, case = self.plan, self.case
        n_workers = len(plan.replicas_per_task)
        args = [(str(self.capture.folder), plan, task) for task in range(n_workers)]
        rival = open_coordinated if plan.strategy == SERVERS else open_baseline
        by_replicas = case.chosen.strategy.runner_on(plan.device) == "replicas"
        opens = (
            partial(open_replicas, batches=str(self.batches))
            if by_replicas
            else partial(rival, case=case, seed=SEED)
        )
        opened = processes.call(opens, args, timeout_s=120)
        shares = [(str(self.batches), session.start, session.stop) for session in opened]
        processes.call(stage_batches, shares, timeout_s=120)
        processes.call(load, [()] * n_workers, timeout_s=120)

    def outcome(self, processes: ProcessSet, n_steps: int) -> Outcome:
        """Outcome of the first steps, for which processes are made ready."""
        self.make_ready(processes)
        return first_steps(processes, n_steps, steps_per_loop=self.plan.execution.steps_per_loop)

    def reference(self, n_steps: int) -> Reference:
        """Reference of the same replicas on one worker: it has only their ranks and shares."""
        shape = replace(self.case.shape, workers=1, replicas_per_worker=self.case.shape.n_replicas)
        return reference_of(self.captures, replace(self.case, shape=shape), self.capture, n_steps)

    def verdict(self, processes: ProcessSet, n_steps: int) -> Verdict:
        """Verdict on the first steps; losses are part of it."""
        outcome = self.outcome(processes, n_steps)
        return self.reference(n_steps).judge(outcome)


@contextmanager
def started(
    plan: Plan,
    folder: Path,
    break_it: Job[None] | None = None,
    server: Job[int, Sequence[str], int, None] | None = None,
) -> Iterator[ProcessSet]:
    """The workers of a plan.

    Args:
        break_it: a job that makes them compute something else.
        server: job that starts in place of the plan's own TensorFlow strategy.
    """
    coordinated = plan.strategy == SERVERS
    n_workers = len(plan.replicas_per_task)
    own = partial(start_cluster if coordinated else start_distribution, plan=plan)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(Path(__file__).parent))  # with jobs of tests
        with serving_processes(
            LocalWorkers(folder=folder),
            [folder / f"worker-{task}.log" for task in range(n_workers)],
            n_devices=plan.replicas_per_task,
            server=server or own,
            n_ports=3 if coordinated else 1,
        ) as processes:
            if break_it is not None:
                processes.call(break_it, [()] * n_workers, timeout_s=120)
            yield processes
