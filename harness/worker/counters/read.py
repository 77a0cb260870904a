"""Kernel counters of a worker: all of them read at one moment, in one job."""

from dataclasses import dataclass

from harness.host_facts import followed_lock
from harness.records.facts.circumstances import GpuFacts
from harness.worker.counters.gpus import gpu_facts
from harness.worker.counters.interface import Interface, read_interface
from harness.worker.counters.tcp import Reading, read_connections
from harness.worker.process.job import JobState
from harness.worker.process.os_process import boot_id


@dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """Counters of one worker; None where the kernel does not offer them, or nobody asked.

    Attributes:
        machine: id of the boot of the kernel that it runs on, one for all of a machine's containers.
        gpus: kinds of its GPUs; None without any.
        lock: name of the lock file that its environment was installed from.
    """

    machine: str | None
    tcp: Reading | None
    interface: Interface | None
    gpus: tuple[GpuFacts, ...] | None = None
    lock: str | None = None


def read_counters(state: JobState, address: str | None) -> Counters:
    """Read this process's counters; no step may be in flight.

    Args:
        address: of the interface to read; None for none.
    """
    del state
    # Connections first: their reader waits until the last bytes have arrived.
    tcp = read_connections()
    interface = None if address is None else read_interface(address)
    return Counters(machine=_machine(), tcp=tcp, interface=interface, gpus=gpu_facts(), lock=followed_lock())


def _machine() -> str | None:
    try:
        return boot_id()
    except OSError:
        return None
