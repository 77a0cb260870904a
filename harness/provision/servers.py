"""Fresh processes whose servers, or sockets in a ring, know each other: where every case begins."""

import secrets
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from harness.errors import CaseError
from harness.provision.protocols import Forks, ProcessSet
from harness.worker.jobs import rendezvous
from harness.worker.process.job import Job

_SECRET_BYTES = 32


@contextmanager
def serving_processes(
    cluster: Forks,
    log_paths: Sequence[Path],
    *,
    n_devices: Sequence[int],
    timeout_s: float = 60.0,
    attempts: int = 3,
    server: Job[int, Sequence[str], int, None] = rendezvous.start_server,
    n_ports: int = 1,
    first: int = 0,
) -> Iterator[ProcessSet]:
    """Fork processes on workers and start a server in each; all are dead when the context ends.

    Args:
        log_paths: one for each process; their number is the number of workers.
        n_devices: logical CPU devices of each server.
        attempts: how often to try, with other ports, when somebody takes a port in the moment between its
            reservation and its use.
        server: the job that starts one, called with task, addresses and devices.
        n_ports: on each worker. Addresses are those of the first port of all workers, then of the next.
        first: worker of the cluster that the first process runs on; the others follow.
    Raises:
        CaseError: as `ProcessSet.call`; `port-in-use` when the last attempt failed too.
    """
    n_workers = len(log_paths)
    with ExitStack() as stack:
        for attempt in range(attempts):
            processes = stack.enter_context(cluster.open_session(range(first, first + n_workers), log_paths))
            wanted = [(n_ports, host) for host in processes.hosts]
            reserved = processes.call(rendezvous.reserve_ports, wanted, timeout_s=timeout_s)
            addresses = _port_by_port(reserved)
            args = [(task, addresses, n_devices[task]) for task in range(n_workers)]
            try:
                processes.call(server, args, timeout_s=timeout_s)
            except CaseError as error:
                if error.kind != "port-in-use" or attempt + 1 == attempts:
                    raise
                stack.pop_all().close()
                continue
            break
        yield processes


def join_ring(processes: ProcessSet, *, timeout_s: float = 60.0) -> None:
    """Let processes connect to each other in a ring, through which `open_program` lets them sum.

    They know each other by a secret of this ring's own, which they get on the control network.

    Raises:
        CaseError: as `ProcessSet.call`; `unreachable` when one does not come.
    """
    hosts = [(host,) for host in processes.hosts]
    addresses = processes.call(rendezvous.listen, hosts, timeout_s=timeout_s)
    secret = secrets.token_bytes(_SECRET_BYTES)
    args = [(task, addresses, secret) for task in range(len(hosts))]
    processes.call(rendezvous.join_ring, args, timeout_s=timeout_s)


def _port_by_port(reserved: Sequence[Sequence[str]]) -> list[str]:
    return [address for of_all in zip(*reserved, strict=True) for address in of_all]
