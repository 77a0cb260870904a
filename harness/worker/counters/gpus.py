"""What the GPUs of a worker have done, as NVIDIA's driver counts it (NVML)."""

import functools
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

Value = TypeVar("Value")

_ALL_LINKS = 2**32 - 1
_KIB = 1024
_SAMPLES_S = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuReading:
    """Counters of one GPU, whoever uses it; None for what it does not count.

    Attributes:
        at_s: seconds since 1970.
        joules: since the driver was loaded.
        busy: the driver's latest samples: when each was taken, and in which share of the time before it, 1/6
            to 1 s long, any kernel ran.
        own_bytes: of its memory, those that this process holds.
        link_bytes: sent over all of its NVLinks; data alone, no headers.
        pcie_bytes: sent over PCI Express.
    """

    uuid: str
    at_s: float = 0.0
    joules: float | None = None
    busy: tuple[tuple[float, float], ...] = ()
    own_bytes: int | None = None
    link_bytes: int | None = None
    pcie_bytes: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuReadings:
    """Those of all GPUs that a process may use; `missing` says in words why there are none."""

    gpus: tuple[GpuReading, ...] = ()
    missing: str | None = None


def read_gpus() -> GpuReadings | None:
    """Read the counters; None for a process that shall use no GPU.

    Source:
        NVML API Reference Guide: nvmlDeviceGetTotalEnergyConsumption (mJ), nvmlDeviceGetSamples (per cent,
        microseconds since 1970), NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX (KiB),
        NVML_FI_DEV_PCIE_COUNT_TX_BYTES.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or visible in ("", "-1"):
        return None
    try:
        import pynvml
    except ImportError:
        return GpuReadings(missing="the package nvidia-ml-py is not installed")
    try:
        devices = _devices(visible)
        return GpuReadings(gpus=tuple(_read(uuid, device) for uuid, device in devices))
    except (pynvml.NVMLError, AttributeError, ValueError) as error:
        return GpuReadings(missing=f"NVIDIA's driver tells nothing of {visible}: {error}")


@functools.cache
def _devices(visible: str) -> Sequence[tuple[str, object]]:
    """UUIDs and handles of devices, which are named by number or UUID, in their order.

    Initializing takes tens of milliseconds, so it is done once in a process.
    """
    import pynvml

    pynvml.nvmlInit()
    handles = [
        pynvml.nvmlDeviceGetHandleByIndex(int(name))
        if name.isdecimal()
        else pynvml.nvmlDeviceGetHandleByUUID(name)
        for name in map(str.strip, visible.split(","))
    ]
    return [(str(pynvml.nvmlDeviceGetUUID(handle)), handle) for handle in handles]


def _read(uuid: str, device: object) -> GpuReading:
    import pynvml as nvml

    def known(read: Callable[[], Value]) -> Value | None:
        try:
            return read()
        except (nvml.NVMLError, AttributeError, TypeError):
            # The driver does not count it, or a binding of another age does not know it.
            return None

    def counter(name: str, scope: int) -> int | None:
        (value,) = nvml.nvmlDeviceGetFieldValues(device, [(getattr(nvml, name), scope)])
        # One of 32 bits begins anew within a window, who knows how often.
        is_whole = value.valueType == nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
        return int(value.value.ullVal) if is_whole and not value.nvmlReturn else None

    def busy() -> tuple[tuple[float, float], ...]:
        at_us = int((now_s - _SAMPLES_S) * 1e6)
        _, samples = nvml.nvmlDeviceGetSamples(device, nvml.NVML_GPU_UTILIZATION_SAMPLES, at_us)
        return tuple((sample.timeStamp / 1e6, sample.sampleValue.uiVal / 100) for sample in samples)

    def own_bytes() -> int | None:
        # In a container the driver has other process ids than the process.
        held = {each.pid: each.usedGpuMemory for each in nvml.nvmlDeviceGetComputeRunningProcesses(device)}
        return held.get(os.getpid())

    now_s = time.time()
    link_kib = known(lambda: counter("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", _ALL_LINKS))
    return GpuReading(
        uuid=uuid,
        at_s=now_s,
        joules=known(lambda: float(nvml.nvmlDeviceGetTotalEnergyConsumption(device)) / 1e3),
        busy=known(busy) or (),
        own_bytes=known(own_bytes),
        link_bytes=None if link_kib is None else link_kib * _KIB,
        pcie_bytes=known(lambda: counter("NVML_FI_DEV_PCIE_COUNT_TX_BYTES", 0)),
    )
