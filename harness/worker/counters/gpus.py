"""What the GPUs of a worker have done, as NVIDIA's driver counts it (NVML)."""

import functools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

Value = TypeVar("Value")

_ALL_LINKS = 2**32 - 1
_KIB = 1024


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuReading:
    """Counters of one GPU, whoever uses it; None for what it does not count.

    Attributes:
        joules: since the driver was loaded.
        busy: share of the driver's latest sample, 1/6 to 1 s long, in which any kernel ran.
        used_bytes: of its memory.
        link_bytes: sent over all of its NVLinks; data alone, no headers.
        pcie_bytes: sent over PCI Express.
    """

    uuid: str
    joules: float | None = None
    busy: float | None = None
    used_bytes: int | None = None
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
        NVML API Reference Guide: nvmlDeviceGetTotalEnergyConsumption (mJ), nvmlUtilization_t (per cent),
        NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX (KiB), NVML_FI_DEV_PCIE_COUNT_TX_BYTES.
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
    except pynvml.NVMLError as error:
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
        except nvml.NVMLError:
            return None

    def field(number: int, scope: int) -> int | None:
        (value,) = nvml.nvmlDeviceGetFieldValues(device, [(number, scope)])
        return None if value.nvmlReturn else int(value.value.ullVal)

    link_kib = known(lambda: field(nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX, _ALL_LINKS))
    return GpuReading(
        uuid=uuid,
        joules=known(lambda: float(nvml.nvmlDeviceGetTotalEnergyConsumption(device)) / 1e3),
        busy=known(lambda: float(nvml.nvmlDeviceGetUtilizationRates(device).gpu) / 100),
        used_bytes=known(lambda: int(nvml.nvmlDeviceGetMemoryInfo(device).used)),
        link_bytes=None if link_kib is None else link_kib * _KIB,
        pcie_bytes=known(lambda: field(nvml.NVML_FI_DEV_PCIE_COUNT_TX_BYTES, 0)),
    )
