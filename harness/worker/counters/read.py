"""Job that reads all kernel counters of a worker at one moment."""

from dataclasses import dataclass
from pathlib import Path

from harness.host_facts import followed_lock
from harness.records.conditions import GpuFacts
from harness.worker.counters.gpus import gpu_facts, gpu_memory_bytes
from harness.worker.counters.network import Interface, Reading, read_connections, read_interface
from harness.worker.process.job import JobState
from harness.worker.process.os_process import available_memory_bytes, boot_id


@dataclass(frozen=True, kw_only=True, slots=True)
class Counters:
    """Counters of one worker; None for those that are unknown or not requested.

    Attributes:
        machine: boot id, shared by all containers of a machine.
        gpus: kinds of its GPUs; None without GPUs.
        lock: lock file of its environment.
    """

    machine: str | None
    tcp: Reading | None
    interface: Interface | None
    gpus: tuple[GpuFacts, ...] | None = None
    lock: str | None = None


def read_counters(state: JobState, address: str | None) -> Counters:
    """Read this process's counters; no step may be in flight.

    Args:
        address: address of the interface to read; None to read none.
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


# Limit, use, and the statistics of the reclaimable part of the use.
_MEMORY_USE = (
    ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current", "/sys/fs/cgroup/memory.stat"),
    (
        "/sys/fs/cgroup/memory/memory.limit_in_bytes",
        "/sys/fs/cgroup/memory/memory.usage_in_bytes",
        "/sys/fs/cgroup/memory/memory.stat",
    ),
)


def memory_left_bytes(state: JobState) -> int | None:
    """Free memory of the machine within the control group's limit; None if unknown."""
    del state
    known = (available_memory_bytes(), *(_left_in_group(*paths) for paths in _MEMORY_USE))
    return min((n_bytes for n_bytes in known if n_bytes is not None), default=None)


def memory_left(state: JobState) -> dict[str, int]:
    """Free bytes of the host and of each GPU of this process, by `host` and UUID, as far as known."""
    host_bytes = memory_left_bytes(state)
    return ({} if host_bytes is None else {"host": host_bytes}) | gpu_memory_bytes("free")


def _left_in_group(limit: str, use: str, statistics: str) -> int | None:
    try:
        limit_text = Path(limit).read_text().strip()
        used_bytes = int(Path(use).read_text())
        lines = Path(statistics).read_text().splitlines()
    except (OSError, ValueError):
        return None
    if limit_text == "max":
        return None
    cached = (line.split() for line in lines if line.startswith("inactive_file "))
    return int(limit_text) - used_bytes + sum(int(n_bytes) for _, n_bytes in cached)
