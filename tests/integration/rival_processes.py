"""Real processes of TensorFlow's own strategies, for tests: started once, for one workload or several."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.experiment.cases import Case
from harness.provision.local.child_processes import SoloWorkers
from harness.provision.protocols import ProcessSet
from harness.provision.servers import serving_processes
from harness.run.captures import Capture
from harness.run.case import BASELINE, COORDINATED, JOBS, STUDY
from harness.study.target import SEED
from harness.worker.jobs.training import Opened
from strategies.plan.schema import Plan

SERVERS = "tf-parameter-server"


@contextmanager
def started(plan: Plan, folder: Path, break_it: str | None = None) -> Iterator[ProcessSet]:
    """The workers of a plan.

    Args:
        break_it: a job of `probe_jobs` that makes them compute something else.
    """
    coordinated = plan.strategy == SERVERS
    n_workers = len(plan.replicas_per_task)
    with serving_processes(
        SoloWorkers(folder=folder),
        [folder / f"worker-{task}.log" for task in range(n_workers)],
        n_devices=plan.replicas_per_task,
        server=f"{COORDINATED}:start_cluster" if coordinated else f"{BASELINE}:start_distribution",
        settings=(plan.model_dump_json(),),
        n_ports=3 if coordinated else 1,
    ) as processes:
        if break_it is not None:
            processes.call(f"probe_jobs:{break_it}", [()] * n_workers, timeout_s=120)
        yield processes


def make_ready(processes: ProcessSet, case: Case, capture: Capture, plan: Plan, batches: Path) -> None:
    """Build a workload in all workers, with its first batches staged and its initial values loaded."""
    n_workers = len(plan.replicas_per_task)
    args = [(case, SEED, str(capture.folder), plan.model_dump_json(), task) for task in range(n_workers)]
    job = f"{COORDINATED}:open_coordinated" if plan.strategy == SERVERS else f"{BASELINE}:open_baseline"
    answers = [a for a in processes.call(job, args, timeout_s=120) if isinstance(a, Opened)]
    shares = [(str(batches), answer.start, answer.stop) for answer in answers]
    processes.call(f"{STUDY}:stage_batches", shares, timeout_s=120)
    processes.call(f"{JOBS}:load", [()] * n_workers, timeout_s=120)
