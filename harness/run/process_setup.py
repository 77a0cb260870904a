"""Setup of a case's processes: their servers or ring, the plan's step, initial values and batches."""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from harness.errors import CaseError
from harness.experiment.cases import Case
from harness.experiment.model import InputRule
from harness.measure.timeouts import Timeouts
from harness.provision.accelerators import shared_memory_mib
from harness.provision.protocols import ProcessSet, ProcessSource
from harness.verification.captures import Capture
from harness.verification.reference import Reference
from harness.worker.jobs import rendezvous, training
from harness.worker.jobs.arithmetic import check_exactly, set_tf32
from harness.worker.jobs.batches import stage_batches
from harness.worker.jobs.distributed import parameter_server, synchronous, workload
from harness.worker.jobs.distributed.compiled_replicas import open_replicas
from harness.worker.jobs.gpus import start_on_gpus
from harness.worker.jobs.training import Opened
from harness.worker.jobs.xla import start_compiling
from harness.worker.process.job import Job
from strategies.plan.schema import Plan
from strategies.planner import n_waiting

_SECRET_BYTES = 32
_ATTEMPTS = 3  # with other ports each, because another process may take a port after its reservation


@contextmanager
def serving_processes(
    cluster: ProcessSource,
    log_paths: Sequence[Path],
    *,
    n_devices: Sequence[int],
    timeout_s: float = 60.0,
    server: Job[int, Sequence[str], int, None] = rendezvous.start_server,
    n_ports: int = 1,
    first: int = 0,
) -> Iterator[ProcessSet]:
    """Fork processes on workers and start a server in each; all are dead when the context ends.

    Args:
        log_paths: log of each worker; their number is the number of workers.
        n_devices: logical CPU devices of each server.
        server: job that starts one, called with task, addresses and devices.
        n_ports: ports of each worker. Addresses are those of the first port of all workers, then of the next.
        first: number of the cluster's worker that runs the first process; the others follow.
    Raises:
        CaseError: see `ProcessSet.call`; `port-in-use` if the last attempt failed, too.
    """
    n_workers = len(log_paths)
    with ExitStack() as stack:
        for attempt in range(_ATTEMPTS):
            processes = stack.enter_context(cluster.open_session(range(first, first + n_workers), log_paths))
            wanted = [(n_ports, host) for host in processes.hosts]
            reserved = processes.call(rendezvous.reserve_ports, wanted, timeout_s=timeout_s)
            addresses = _port_by_port(reserved)
            args = [(task, addresses, n_devices[task]) for task in range(n_workers)]
            try:
                processes.call(server, args, timeout_s=timeout_s)
            except CaseError as error:
                if error.kind != "port-in-use" or attempt + 1 == _ATTEMPTS:
                    raise
                stack.pop_all().close()
                continue
            break
        yield processes


def join_ring(processes: ProcessSet, *, timeout_s: float = 60.0) -> None:
    """Connect processes in a ring, which programs of `open_program` use to sum.

    They recognise each other by a secret of this ring, sent over the control network.

    Raises:
        CaseError: see `ProcessSet.call`; `unreachable` if one does not connect.
    """
    hosts = [(host,) for host in processes.hosts]
    addresses = processes.call(rendezvous.listen, hosts, timeout_s=timeout_s)
    secret = secrets.token_bytes(_SECRET_BYTES)
    args = [(task, addresses, secret) for task in range(len(hosts))]
    processes.call(rendezvous.join_ring, args, timeout_s=timeout_s)


def _port_by_port(reserved: Sequence[Sequence[str]]) -> list[str]:
    return [address for of_all in zip(*reserved, strict=True) for address in of_all]


_COORDINATED_PORTS = 3  # ports of a worker, of a parameter server, of the coordinator


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedCase:
    """A case with the initial data of its processes.

    Attributes:
        seed: seed of the capture, for strategies that build the workload anew.
        batches: folder of global batches, used in turn.
        logs: log of each worker.
        first: number of the cluster's worker that runs the case's first worker.
        input: source of the timed steps' batches.
        reference: expected state for the first check of the real workers; None checks nothing.
        number: number of the repeat, to note with the check.
        checkpoint: folder for the state after the last step; None saves none.
    """

    case: Case
    seed: int
    capture: Capture
    plan: Plan
    batches: Path
    logs: Sequence[Path]
    first: int = 0
    input: InputRule = "staged"
    reference: Reference | None = None
    number: int = 0
    checkpoint: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Runner:
    """Runner of a strategy's steps: TensorFlow's server of its processes, and the job that opens a program.

    Attributes:
        stops: job that resets devices before the process ends, if their state would remain; None if not
            needed.
    """

    server: Job[int, Sequence[str], int, None]
    opens: Job[str, Plan, int, Opened]
    n_ports: int = 1
    stops: Job[None] | None = None


def _runner_of(prepared: PreparedCase) -> _Runner:
    plan, case, seed = prepared.plan, prepared.case, prepared.seed
    # Batches of a pipeline come from the host.
    staged = str(prepared.batches) if prepared.input == "staged" else None
    match case.chosen.strategy.runner_on(case.shape.hardware):
        case "graph":
            return _Runner(
                server=partial(rendezvous.start_server, n_waiting=n_waiting(plan)),
                opens=partial(
                    training.open_program,
                    xla=case.computation.xla,
                    batches=staged,
                ),
            )
        case "baseline":
            return _Runner(
                server=partial(workload.start_distribution, plan=plan),
                opens=partial(synchronous.open_baseline, case=case, seed=seed, batches=staged),
                stops=workload.stop_distribution if plan.device == "tpu" else None,
            )
        case "replicas":
            return _Runner(
                server=partial(workload.start_distribution, plan=plan),
                opens=partial(open_replicas, batches=str(prepared.batches)),
                stops=workload.stop_distribution,
            )
        case "coordinator":
            return _Runner(
                server=partial(parameter_server.start_cluster, plan=plan),
                opens=partial(parameter_server.open_coordinated, case=case, seed=seed),
                n_ports=_COORDINATED_PORTS,
            )


@contextmanager
def _stopped(processes: ProcessSet, runner: _Runner, timeouts: Timeouts) -> Iterator[None]:
    try:
        yield
    finally:
        if runner.stops is not None:
            # The processes are killed next, and the kernel frees everything they held.
            with suppress(CaseError):
                args = [()] * len(processes.pids)
                processes.call(runner.stops, args, timeout_s=timeouts.setup_s, stage="collect")


@contextmanager
def ready_processes(
    cluster: ProcessSource, prepared: PreparedCase, timeouts: Timeouts, *, are_checked: bool = False
) -> Iterator[tuple[ProcessSet, tuple[Opened, ...]]]:
    """New processes with a plan's step, its initial values and its batches; dead when the context ends.

    Args:
        are_checked: True if their steps are compared with the reference and not timed; see
            `harness.worker.jobs.arithmetic`.
    """
    plan, folder = prepared.plan, str(prepared.capture.folder)
    n_devices = [count if plan.device == "cpu" else 1 for count in plan.replicas_per_task]
    runner = _runner_of(prepared)
    server = runner.server
    if prepared.case.computation.xla:
        server = partial(start_compiling, server=server)
    if plan.device == "gpu":
        shared_mib = shared_memory_mib(prepared.case.shape, prepared.first)
        n_gpus = [len(own) for own in shared_mib] or plan.replicas_per_task
        server = partial(start_on_gpus, server=server, n_gpus=n_gpus, shared_mib=shared_mib)
    with (
        serving_processes(
            cluster,
            prepared.logs,
            n_devices=n_devices,
            server=server,
            n_ports=runner.n_ports,
            timeout_s=timeouts.server_s,
            first=prepared.first,
        ) as processes,
        _stopped(processes, runner, timeouts),
    ):
        if n_waiting(plan):
            join_ring(processes, timeout_s=timeouts.setup_s)
        arithmetic = check_exactly if are_checked else partial(set_tf32, tf32=prepared.case.computation.tf32)
        on_gpus = [arithmetic] if plan.device == "gpu" else []
        for job in on_gpus:
            processes.call(job, [()] * len(prepared.logs), timeout_s=timeouts.setup_s, stage="load")
        args = [(folder, plan, task) for task in range(len(prepared.logs))]
        opened = processes.call(runner.opens, args, timeout_s=timeouts.setup_s, stage="transform")
        # The workload's own code has run: it may have called kernels, and changed settings.
        for job in (*on_gpus, training.load, training.setup):
            processes.call(job, [()] * len(opened), timeout_s=timeouts.setup_s, stage="load")
        shares = [(str(prepared.batches), session.start, session.stop) for session in opened]
        processes.call(stage_batches, shares, timeout_s=timeouts.setup_s, stage="load")
        yield processes, tuple(opened)
