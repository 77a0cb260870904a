"""GPUs as NVIDIA's driver counts them; a fake module stands for its library."""

import os
import sys
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from harness.measure.consumption import consumption
from harness.measure.core_use import core_use
from harness.records.facts.costs import GpuUse
from harness.worker.counters import gpus
from harness.worker.counters.cores import CoreReading
from harness.worker.counters.energy import EnergyReading
from harness.worker.counters.gpus import GpuReading, GpuReadings, read_gpus

UTILIZATION, WHOLE = 1, 3


class NVMLError(Exception):
    pass


def by_uuid(uuid: str) -> str:
    if not uuid.startswith("GPU-"):
        raise NVMLError("Not Found")
    return uuid


def millijoules(handle: str) -> int:
    if handle == "GPU-1":
        raise NVMLError("Not Supported")
    return 2_500


def fields(handle: str, wanted: list[tuple[int, int]]) -> list[Any]:
    code = 3 if handle == "GPU-1" else 0
    values = [SimpleNamespace(ullVal={138: 4, 197: 1000}[number]) for number, _ in wanted]
    return [SimpleNamespace(nvmlReturn=code, valueType=WHOLE, value=value) for value in values]


def samples(_: str, kind: int, since_us: int) -> tuple[int, list[Any]]:
    assert kind == UTILIZATION
    assert since_us < time.time() * 1e6
    return 1, [SimpleNamespace(timeStamp=5_000_000, sampleValue=SimpleNamespace(uiVal=75))]


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """A driver with two GPUs, the second of which counts no energy and no bytes; how often it was started."""
    started: list[None] = []
    fake = SimpleNamespace(
        NVMLError=NVMLError,
        NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX=138,
        NVML_FI_DEV_PCIE_COUNT_TX_BYTES=197,
        nvmlInit=lambda: started.append(None),
        nvmlDeviceGetHandleByIndex=lambda number: f"GPU-{number}",
        nvmlDeviceGetHandleByUUID=by_uuid,
        nvmlDeviceGetUUID=lambda handle: handle,
        nvmlDeviceGetTotalEnergyConsumption=millijoules,
        NVML_GPU_UTILIZATION_SAMPLES=UTILIZATION,
        NVML_VALUE_TYPE_UNSIGNED_LONG_LONG=WHOLE,
        nvmlDeviceGetSamples=samples,
        nvmlDeviceGetComputeRunningProcesses=lambda _: [
            SimpleNamespace(pid=os.getpid(), usedGpuMemory=3 << 30),
            SimpleNamespace(pid=1, usedGpuMemory=9 << 30),
        ],
        nvmlDeviceGetFieldValues=fields,
    )
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    gpus._devices.cache_clear()
    return started


@pytest.mark.parametrize("visible", ["GPU-0,GPU-1", "0, 1"])
def test_each_visible_gpu_is_read_and_what_it_does_not_count_is_none(
    starts: list[None], monkeypatch: pytest.MonkeyPatch, visible: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    read_gpus()
    found = read_gpus()
    assert found is not None
    same = GpuReading(uuid="GPU-1", busy=((5.0, 0.75),), own_bytes=3 << 30)
    assert [replace(gpu, at_s=0.0) for gpu in found.gpus] == [
        replace(same, uuid="GPU-0", joules=2.5, link_bytes=4096, pcie_bytes=1000),
        same,
    ]
    assert found.gpus[0].at_s == pytest.approx(time.time(), abs=60)
    assert len(starts) == 1


@pytest.mark.parametrize("visible", ["-1", "", None])
def test_a_process_that_uses_no_gpu_has_no_reading(
    starts: list[None], monkeypatch: pytest.MonkeyPatch, visible: str | None
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert read_gpus() is None
    assert not starts


@pytest.mark.usefixtures("starts")
def test_a_counter_that_wraps_or_is_unknown_to_the_binding_tells_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(sys.modules["pynvml"], "NVML_VALUE_TYPE_UNSIGNED_LONG_LONG", WHOLE + 1)
    monkeypatch.delattr(sys.modules["pynvml"], "NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX")
    found = read_gpus()
    assert found is not None
    assert (found.gpus[0].pcie_bytes, found.gpus[0].link_bytes, found.gpus[0].joules) == (None, None, 2.5)


@pytest.mark.usefixtures("starts")
def test_why_nothing_is_known_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-7")
    assert read_gpus() == GpuReadings(missing="NVIDIA's driver tells nothing of MIG-7: Not Found")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read_gpus() == GpuReadings(missing="the package nvidia-ml-py is not installed")


def reading(at_s: float, found: GpuReadings | None) -> CoreReading:
    return CoreReading(
        kernel="k",
        cores=(0,),
        at_s=at_s,
        busy_s=at_s,
        stolen_s=0.0,
        own_s=at_s,
        control_group="",
        throttled_s=None,
        n_hot=None,
        energy=EnergyReading(missing="none"),
        gpus=found,
    )


def gpu(
    joules: float | None, *, uuid: str = "a", at_s: float = 0.0, sent: int = 0, **more: Any
) -> GpuReading:
    return GpuReading(uuid=uuid, at_s=at_s, joules=joules, own_bytes=100, pcie_bytes=sent, **more)


def used(*workers: tuple[GpuReadings | None, GpuReadings | None], n_steps: int = 4) -> GpuUse | None:
    """What two equal windows of these workers, each before and after, come to."""
    use = core_use([(reading(0.0, before), reading(1.0, after)) for before, after in workers])
    return consumption([use, use], n_steps).gpus


def test_steps_of_all_windows_share_what_all_gpus_took() -> None:
    first = GpuReadings(gpus=(gpu(1.0),)), GpuReadings(gpus=(gpu(3.0, sent=40),))
    second = GpuReadings(gpus=(gpu(5.0, uuid="b"),)), GpuReadings(gpus=(gpu(6.0, uuid="b"),))
    assert used(first, second) == GpuUse(
        n_gpus=2, joules_per_step=2 * (2 + 1) / 4, own_bytes=100, pcie_bytes_per_step=2 * 40 / 4
    )


def test_samples_that_tell_of_time_before_a_window_are_left_out() -> None:
    seen = ((9.0, 1.0), (10.5, 0.9), (11.5, 0.4), (12.5, 0.2))
    found = used(
        (GpuReadings(gpus=(gpu(1.0, at_s=10.0),)), GpuReadings(gpus=(gpu(1.0, at_s=13.0, busy=seen),)))
    )
    assert found is not None
    assert found.busy == pytest.approx(0.3)


def test_a_gpu_that_two_workers_share_counts_once() -> None:
    worker = GpuReadings(gpus=(gpu(1.0),)), GpuReadings(gpus=(gpu(3.0),))
    shared = used(worker, worker)
    assert shared is not None
    assert (shared.n_gpus, shared.joules_per_step) == (1, 1.0)


@pytest.mark.parametrize("after_j", [None, 0.5], ids=["not counted", "driver loaded anew"])
def test_what_one_gpu_does_not_tell_is_not_made_up(after_j: float | None) -> None:
    found = used((GpuReadings(gpus=(gpu(1.0),)), GpuReadings(gpus=(gpu(after_j),))))
    assert found is not None
    assert (found.joules_per_step, found.own_bytes) == (None, 100)


def test_without_gpus_there_is_nothing_and_without_a_driver_a_reason() -> None:
    assert used((None, None)) is None
    silent = GpuReadings(missing="no driver")
    assert used((silent, silent)) == GpuUse(why_none="no driver")
