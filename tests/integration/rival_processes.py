"""Real processes of TensorFlow's own strategies, for tests: started once, for one workload or several."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from harness.experiment.cases import Case
from harness.planned_target import SEED
from harness.provision.child_processes import LocalWorkers
from harness.provision.protocols import ProcessSet
from harness.run.process_setup import serving_processes
from harness.verification.captures import Capture
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


def make_ready(processes: ProcessSet, case: Case, capture: Capture, plan: Plan, batches: Path) -> None:
    """Build a workload in all workers, with its first batches staged and its initial values loaded."""
    n_workers = len(plan.replicas_per_task)
    args = [(str(capture.folder), plan, task) for task in range(n_workers)]
    rival = open_coordinated if plan.strategy == SERVERS else open_baseline
    by_replicas = case.chosen.strategy.runner_on(plan.device) == "replicas"
    opens = (
        partial(open_replicas, batches=str(batches)) if by_replicas else partial(rival, case=case, seed=SEED)
    )
    opened = processes.call(opens, args, timeout_s=120)
    shares = [(str(batches), session.start, session.stop) for session in opened]
    processes.call(stage_batches, shares, timeout_s=120)
    processes.call(load, [()] * n_workers, timeout_s=120)
