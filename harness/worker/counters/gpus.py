"""Facts and counters of a worker's GPUs, from NVIDIA's driver (NVML) and TensorFlow's allocator."""

import ctypes
import functools
import os
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Literal, TypeVar

from harness.errors import first_line
from harness.records.conditions import GpuFacts
from harness.worker.process.os_process import is_of_this_run
from harness.worker.process.tensorflow_gpus import logical_devices

Value = TypeVar("Value")

_ALL_LINKS = 2**32 - 1
_KIB = 1024
_SAMPLES_S = 10.0
# A smaller share of a GPU's memory may be the driver's own.
_UNLISTED_BYTES = 512 * 2**20
# Bits of a counter by the driver's type; other types have 32 bits.
_WHOLE = MappingProxyType({2: "ulVal", 3: "ullVal"})
POWER_LIMIT = "power limit"
# Counters of seconds with reduced clocks, by reason, in nanoseconds.
_HELD_DOWN = MappingProxyType(
    {POWER_LIMIT: "NVML_FI_DEV_PERF_POLICY_POWER", "heat": "NVML_FI_DEV_PERF_POLICY_THERMAL"}
)
# Reasons for lowered clocks, by bit.
_REASONS = MappingProxyType(
    {0x04: POWER_LIMIT, 0x08: "hardware slowdown", 0x20: "heat", 0x40: "heat", 0x80: "power brake"}
)
_SM, _MEMORY = 1, 2  # in the driver's clocks
_NOT_LISTED = "NVIDIA's driver does not list this process, so that programs cannot be distinguished"


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuReading:
    """Counters of one GPU, other users included; None for unknown values.

    Attributes:
        at_s: seconds since 1970.
        joules: energy since the driver was loaded.
        busy: the driver's samples: time, and share of the 1/6 to 1 s before it with a running kernel.
        own_bytes: memory of this process.
        peak_bytes: peak of TensorFlow's allocator in this process since the previous reading.
        link_bytes: bytes sent over all NVLinks, without headers.
        pcie_bytes: bytes sent over PCI Express.
        n_foreign: number of programs of other runs. has_unlisted: True if programs that the driver does not
            list here hold memory.
        foreign: share of the time in which other programs' kernels ran.
        held_down_s: seconds with reduced clocks, by reason. reasons: current reasons.
        sm_mhz, memory_mhz: current clocks.
        why_no: unknown field → reason.
    """

    uuid: str
    at_s: float = 0.0
    joules: float | None = None
    busy: tuple[tuple[float, float], ...] | None = None
    own_bytes: int | None = None
    peak_bytes: int | None = None
    link_bytes: int | None = None
    pcie_bytes: int | None = None
    n_foreign: int | None = None
    has_unlisted: bool = False
    foreign: float | None = None
    held_down_s: Mapping[str, float] | None = None
    reasons: tuple[str, ...] | None = None
    sm_mhz: int | None = None
    memory_mhz: int | None = None
    why_no: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True, slots=True)
class GpuReadings:
    """Readings of all GPUs of a process; `missing` says why there are none."""

    gpus: tuple[GpuReading, ...] = ()
    missing: str | None = None


class _UnknownError(Exception):
    """Reason why a value is unknown."""


def read_gpus(since_s: float | None = None) -> GpuReadings | None:
    """Read the counters; None for a process that uses no GPU.

    Args:
        since_s: start of the time in which other programs' use counts, seconds since 1970; None leaves it
            out.
    Source:
        NVML API Reference Guide and nvml.h: nvmlDeviceGetTotalEnergyConsumption (mJ), nvmlDeviceGetSamples
        and nvmlDeviceGetProcessUtilization (per cent, microseconds since 1970),
        NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX (KiB; of all links where the scope is UINT_MAX),
        NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES (Blackwell), NVML_FI_DEV_PCIE_COUNT_TX_BYTES (it may wrap),
        NVML_FI_DEV_PERF_POLICY_* (ns), nvmlClocksEventReasons.
    """
    visible = _visible()
    if visible is None:
        return None
    try:
        import pynvml
    except ImportError:
        return GpuReadings(missing="the package nvidia-ml-py is not installed")
    try:
        devices = _devices(visible)
    except (pynvml.NVMLError, AttributeError, ValueError) as error:
        return GpuReadings(missing=f"NVIDIA's driver does not report {visible}: {error}")
    readers = [_Reader(*device) for device in devices]
    if since_s is None:
        # Slow readings come before those that mark the edge of the next window.
        beside = [reader.beside(since_s) for reader in readers]
        at_edge = [reader.at_edge() for reader in readers]
    else:
        at_edge = [reader.at_edge() for reader in readers]
        beside = [reader.beside(since_s) for reader in readers]
    fields = [{**one, **other} for one, other in zip(beside, at_edge, strict=True)]
    return GpuReadings(gpus=tuple(r.reading(own) for r, own in zip(readers, fields, strict=True)))


@functools.cache
def gpu_facts() -> tuple[GpuFacts, ...] | None:
    """Each kind of GPU of this process once; None for a process that uses none."""
    visible = _visible()
    if visible is None:
        return None
    cuda, cudnn = _library_versions()
    try:
        import pynvml as nvml

        gpus = [_Reader(*device).facts() for device in _devices(visible)]
        driver = _text(nvml.nvmlSystemGetDriverVersion())
    except Exception:  # noqa: BLE001 - whatever a missing or broken binding raises, readings have the reason
        driver, gpus = None, [GpuFacts()]
    kinds = dict.fromkeys((gpu.model, gpu.power_limit_w) for gpu in gpus)
    return tuple(
        GpuFacts(model=model, driver=driver, cuda=cuda, cudnn=cudnn, power_limit_w=limit_w)
        for model, limit_w in kinds
    )


def gpu_memory_bytes(which: Literal["free", "total"]) -> dict[str, int]:
    """UUID of each GPU of this process → its memory, or its free memory; unknown ones are left out."""
    visible = _visible()
    if visible is None:
        return {}
    try:
        import pynvml as nvml

        return {
            uuid: int(getattr(nvml.nvmlDeviceGetMemoryInfo(device, version=nvml.nvmlMemory_v2), which))
            for _, uuid, device in _devices(visible)
        }
    except Exception:  # noqa: BLE001 - whatever a missing or broken binding raises, readings have the reason
        return {}


def _visible() -> str | None:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if visible in (None, "", "-1") else visible


@functools.cache
def _devices(visible: str) -> Sequence[tuple[int, str, object]]:
    """Number, UUID and handle of each device, in the order of the variable that names them.

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
    return [(k, _text(pynvml.nvmlDeviceGetUUID(handle)), handle) for k, handle in enumerate(handles)]


class _Reader:
    """Reader of one GPU that records why values are unknown.

    Args:
        number: number of the device in TensorFlow.
    """

    def __init__(self, number: int, uuid: str, device: object) -> None:
        import pynvml

        self._nvml: Any = pynvml
        self._number, self._uuid, self._device = number, uuid, device
        self._why_no: dict[str, str] = {}

    def facts(self) -> GpuFacts:
        nvml, device = self._nvml, self._device
        limit_mw = self._optional(lambda: float(nvml.nvmlDeviceGetPowerManagementLimit(device)))
        return GpuFacts(
            model=self._optional(lambda: _text(nvml.nvmlDeviceGetName(device))),
            power_limit_w=None if limit_mw is None else limit_mw / 1e3,
        )

    def at_edge(self) -> dict[str, Any]:
        """Fields to read exactly at the edge of a window: time, energy and clocks."""
        nvml, device = self._nvml, self._device
        return {
            "at_s": time.time(),
            "joules": self._known("joules", lambda: nvml.nvmlDeviceGetTotalEnergyConsumption(device) / 1e3),
            "reasons": self._known("reasons", self._reasons),
            "sm_mhz": self._known("sm_mhz", lambda: int(nvml.nvmlDeviceGetClockInfo(device, _SM))),
            "memory_mhz": self._known(
                "memory_mhz", lambda: int(nvml.nvmlDeviceGetClockInfo(device, _MEMORY))
            ),
            "held_down_s": self._known("held_down_s", self._held_down_s),
        }

    def beside(self, since_s: float | None) -> dict[str, Any]:
        """All other fields.

        Args:
            since_s: see `read_gpus`.
        """
        at_s = time.time()
        bytes_of_pid = self._known("own_bytes", self._held_bytes)
        others = None if bytes_of_pid is None else [pid for pid in bytes_of_pid if not is_of_this_run(pid)]
        readers: dict[str, Callable[[], object]] = {
            "busy": lambda: self._busy(at_s),
            "peak_bytes": lambda: _peak_bytes(self._number),
            "link_bytes": self._link_bytes,
            "pcie_bytes": lambda: self._counter("NVML_FI_DEV_PCIE_COUNT_TX_BYTES"),
        }
        if bytes_of_pid is not None:
            readers["own_bytes"] = lambda: _bytes_of_process(bytes_of_pid)
        readers["n_foreign"] = lambda: len(self._distinguished(others))
        if since_s is not None:
            readers["foreign"] = lambda: self._foreign(
                bytes_of_pid or {}, self._distinguished(others), since_s
            )
        fields = {name: self._known(name, read) for name, read in readers.items()}
        return {**fields, "has_unlisted": self._optional(lambda: self._has_unlisted(bytes_of_pid)) is True}

    def reading(self, fields: Mapping[str, Any]) -> GpuReading:
        return GpuReading(uuid=self._uuid, why_no=self._why_no, **fields)

    def _known(self, name: str, read: Callable[[], Value]) -> Value | None:
        """Value from a reader; None if unknown, with the reason under the field's name."""
        try:
            return read()
        except _UnknownError as error:
            self._why_no.setdefault(name, str(error))
        except self._nvml.NVMLError as error:
            self._why_no.setdefault(name, f"NVIDIA's driver says: {error}")
        except (AttributeError, TypeError):
            self._why_no.setdefault(name, "this version of the package nvidia-ml-py does not know it")
        return None

    def _optional(self, read: Callable[[], Value]) -> Value | None:
        """Value from a reader; None if unknown, without a reason."""
        value = self._known("", read)
        self._why_no.pop("", None)
        return value

    def _counter(self, name: str, scope: int = 0) -> int:
        (value,) = self._nvml.nvmlDeviceGetFieldValues(self._device, [(getattr(self._nvml, name), scope)])
        if value.nvmlReturn:
            raise self._nvml.NVMLError(value.nvmlReturn)
        if value.valueType not in _WHOLE:
            raise _UnknownError("the driver's counter has 32 bits and begins anew within a window")
        return int(getattr(value.value, _WHOLE[value.valueType]))

    def _link_bytes(self) -> int:
        try:
            return self._counter("NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX", _ALL_LINKS) * _KIB
        except (self._nvml.NVMLError, AttributeError) as error:
            newer = self._optional(lambda: self._counter("NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES", _ALL_LINKS))
            if newer is None:
                raise error
            return newer

    def _busy(self, now_s: float) -> tuple[tuple[float, float], ...]:
        since_us = int((now_s - _SAMPLES_S) * 1e6)
        nvml = self._nvml
        _, samples = nvml.nvmlDeviceGetSamples(self._device, nvml.NVML_GPU_UTILIZATION_SAMPLES, since_us)
        return tuple((sample.timeStamp / 1e6, sample.sampleValue.uiVal / 100) for sample in samples)

    def _held_bytes(self) -> dict[int, int | None]:
        """Memory by process; in a container the driver lists those of the container only."""
        nvml, device = self._nvml, self._device
        drawing = self._optional(lambda: nvml.nvmlDeviceGetGraphicsRunningProcesses(device)) or ()
        computing = nvml.nvmlDeviceGetComputeRunningProcesses(device)
        return {process.pid: process.usedGpuMemory for process in (*drawing, *computing)}

    def _distinguished(self, others: Sequence[int] | None) -> Sequence[int]:
        if others is None:
            raise _UnknownError(self._why_no["own_bytes"])
        if self._why_no.get("own_bytes") == _NOT_LISTED:
            raise _UnknownError(_NOT_LISTED)
        return others

    def _has_unlisted(self, bytes_of_pid: Mapping[int, int | None] | None) -> bool:
        nvml = self._nvml
        # In containers, some drivers list each process with 0 bytes.
        if bytes_of_pid is None or os.getpid() not in bytes_of_pid or not all(bytes_of_pid.values()):
            return False
        used_bytes = nvml.nvmlDeviceGetMemoryInfo(self._device, version=nvml.nvmlMemory_v2).used
        return bool(used_bytes - sum(n or 0 for n in bytes_of_pid.values()) > _UNLISTED_BYTES)

    def _foreign(
        self, bytes_of_pid: Mapping[int, int | None], others: Collection[int], since_s: float
    ) -> float:
        """Share of the time that other programs used.

        In containers some drivers name processes by the host's ids here, and by the container's elsewhere.
        """
        if not others:
            return 0.0
        samples = self._nvml.nvmlDeviceGetProcessUtilization(self._device, int(since_s * 1e6))
        if bytes_of_pid.keys().isdisjoint(sample.pid for sample in samples):
            raise _UnknownError("NVIDIA's driver does not say how much of the GPU each process used")
        return sum(int(sample.smUtil) for sample in samples if sample.pid in others) / 100

    def _held_down_s(self) -> dict[str, float]:
        return {what: self._counter(name) / 1e9 for what, name in _HELD_DOWN.items()}

    def _reasons(self) -> tuple[str, ...]:
        nvml = self._nvml
        try:
            bits = nvml.nvmlDeviceGetCurrentClocksEventReasons(self._device)
        except (nvml.NVMLError, AttributeError):
            # The name before driver 535.
            bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(self._device)
        return tuple(dict.fromkeys(what for bit, what in _REASONS.items() if bits & bit))


def _bytes_of_process(bytes_of_pid: Mapping[int, int | None]) -> int:
    if os.getpid() not in bytes_of_pid:
        raise _UnknownError(_NOT_LISTED)
    n_bytes = bytes_of_pid[os.getpid()]
    if not n_bytes:
        raise _UnknownError("NVIDIA's driver does not say how much memory a process holds")
    return n_bytes


def _text(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)


@functools.cache
def _allocators() -> Any:  # noqa: ANN401 - TensorFlow has no types
    """TensorFlow context that shows the allocators of this process's GPUs.

    The eager context may be without GPUs, see `harness.worker.jobs.batches`.
    """
    from strategies.tf_bridge.runtime import context_of_all_gpus

    return context_of_all_gpus(logical_devices())


def _device_numbers(number: int) -> Sequence[int]:
    """TensorFlow's device numbers of a GPU or of its logical devices."""
    parts = [len(devices) for devices in logical_devices().values()]
    first = sum(parts[:number])
    return range(first, first + parts[number]) if parts else (number,)


def _peak_bytes(number: int) -> int:
    """Peak of a GPU's allocators since the last call; peaks of several logical devices may differ in time."""
    if "tensorflow" not in sys.modules:
        raise _UnknownError("this process runs no TensorFlow")
    peak_bytes = 0
    try:
        for name in (f"GPU:{device_number}" for device_number in _device_numbers(number)):
            peak_bytes += int(_allocators().get_memory_info(name)["peak"])
            _allocators().reset_memory_stats(name)
    except Exception as error:
        why = first_line(str(error)) or type(error).__name__
        raise _UnknownError(f"TensorFlow's allocator does not answer: {why}") from error
    return peak_bytes


def _library_versions() -> tuple[str | None, str | None]:
    if "tensorflow" not in sys.modules:
        return None, None
    import tensorflow as tf

    built = tf.sysconfig.get_build_info()
    cuda, cudnn = (built.get(name) for name in ("cuda_version", "cudnn_version"))
    return (
        cuda and (_cuda_version(f"libcudart.so.{_major(cuda)}") or str(cuda)),
        cudnn and (_cudnn_version(f"libcudnn.so.{_major(cudnn)}") or str(cudnn)),
    )


def _major(version: object) -> str:
    return str(version).partition(".")[0]


def _cuda_version(library: str) -> str | None:
    """Version from 1000 × major + 10 × minor."""
    number = ctypes.c_int()
    try:
        failed = ctypes.CDLL(library).cudaRuntimeGetVersion(ctypes.byref(number))
    except (OSError, AttributeError):
        return None
    return None if failed else f"{number.value // 1000}.{number.value % 1000 // 10}"


def _cudnn_version(library: str) -> str | None:
    """Version from major × 10000 (before version 9: × 1000) + minor × 100 + patch."""
    try:
        version = ctypes.CDLL(library).cudnnGetVersion
    except (OSError, AttributeError):
        return None
    version.restype = ctypes.c_size_t
    number = int(version())
    of_major = 10_000 if number >= 90_000 else 1_000
    return f"{number // of_major}.{number % of_major // 100}.{number % 100}"
