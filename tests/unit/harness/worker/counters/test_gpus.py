"""GPUs as NVIDIA's driver counts them; a fake module stands for its library."""

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from harness.measure.machine_use import consumption, core_use, stability
from harness.records.conditions import GpuFacts
from harness.records.costs import GpuUse
from harness.records.outcome import Stability
from harness.worker.counters import gpus, read
from harness.worker.counters.cores import CoreReading, EnergyReading
from harness.worker.counters.gpus import GpuReading, GpuReadings, gpu_facts, read_gpus
from harness.worker.jobs.training import StepSession, Training, run_steps
from harness.worker.process.job import JobState
from harness.worker.process.os_process import RUN_FOLDER_VARIABLE

SHORT, LONG, WHOLE = 1, 2, 3
NOT_SUPPORTED = "NVIDIA's driver says: Not Supported"
STRANGER = 2**22 + 1
"""Id of a process that is none of this run's; it may not even exist here."""


class NVMLError(Exception):
    pass


@dataclass(kw_only=True)
class Driver:
    """Answers of a fake driver; `lacking` are functions that it does not support, `lost` makes all fail."""

    starts: int = 0
    fields: dict[int, tuple[int, int]] = field(
        default_factory=lambda: {138: (WHOLE, 4), 197: (WHOLE, 1000), 74: (LONG, 0), 75: (WHOLE, 0)}
    )
    bits: int = 0
    computing: list[tuple[int, int | None]] = field(default_factory=lambda: [(os.getpid(), 3 << 30)])
    drawing: list[tuple[int, int | None]] = field(default_factory=list)
    used_bytes: int = 3 << 30
    utilization: list[tuple[int, int]] = field(default_factory=list)
    lacking: set[str] = field(default_factory=set)
    is_lost: bool = False
    text: type = str

    def answer(self, name: str, value: Any) -> Any:
        if self.is_lost:
            raise NVMLError("GPU is lost")
        if name in self.lacking:
            raise NVMLError("Not Supported")
        return value

    def start(self) -> None:
        self.starts += 1

    def by_uuid(self, uuid: str) -> str:
        if not uuid.startswith(("GPU-", "MIG-")):
            raise NVMLError("Not Found")
        return uuid

    def field_values(self, _: str, wanted: list[tuple[int, int]]) -> list[Any]:
        ((number, scope),) = wanted
        assert scope == (2**32 - 1 if number in (138, 202) else 0)
        kind, value = self.answer("fields", self.fields.get(number, (WHOLE, None)))
        union = SimpleNamespace(**{{SHORT: "uiVal", LONG: "ulVal", WHOLE: "ullVal"}[kind]: value})
        code = "Not Supported" if value is None else 0
        return [SimpleNamespace(nvmlReturn=code, valueType=kind, value=union)]

    def samples(self, _: str, kind: int, since_us: int) -> tuple[int, list[Any]]:
        assert (kind, since_us < time.time() * 1e6) == (1, True)
        results = [SimpleNamespace(timeStamp=5_000_000, sampleValue=SimpleNamespace(uiVal=75))]
        return 1, self.answer("samples", results)

    def processes(self, name: str, listed: list[tuple[int, int | None]]) -> Any:
        return self.answer(name, [SimpleNamespace(pid=pid, usedGpuMemory=n) for pid, n in listed])

    def written(self, value: str) -> Any:
        return value.encode() if self.text is bytes else value

    def module(self) -> Any:
        utilization = lambda *_: [SimpleNamespace(pid=p, smUtil=u) for p, u in self.utilization]  # noqa: E731
        return SimpleNamespace(
            NVMLError=NVMLError,
            NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX=138,
            NVML_FI_DEV_NVLINK_COUNT_XMIT_BYTES=202,
            NVML_FI_DEV_PCIE_COUNT_TX_BYTES=197,
            NVML_FI_DEV_PERF_POLICY_POWER=74,
            NVML_FI_DEV_PERF_POLICY_THERMAL=75,
            NVML_GPU_UTILIZATION_SAMPLES=1,
            nvmlMemory_v2=2,
            nvmlInit=self.start,
            nvmlSystemGetDriverVersion=lambda: self.written("580.65.06"),
            nvmlDeviceGetHandleByIndex=lambda number: f"GPU-{number}",
            nvmlDeviceGetHandleByUUID=self.by_uuid,
            nvmlDeviceGetUUID=self.written,
            nvmlDeviceGetName=lambda _: self.written("NVIDIA H100 80GB HBM3"),
            nvmlDeviceGetPowerManagementLimit=lambda _: self.answer("limit", 700_000),
            nvmlDeviceGetTotalEnergyConsumption=lambda _: self.answer("energy", 2_500),
            nvmlDeviceGetSamples=self.samples,
            nvmlDeviceGetClockInfo=lambda _, clock: self.answer("clock", {1: 1980, 2: 2619}[clock]),
            nvmlDeviceGetCurrentClocksEventReasons=lambda _: self.answer("reasons", self.bits),
            nvmlDeviceGetCurrentClocksThrottleReasons=lambda _: self.answer("old reasons", self.bits),
            nvmlDeviceGetComputeRunningProcesses=lambda _: self.processes("computing", self.computing),
            nvmlDeviceGetGraphicsRunningProcesses=lambda _: self.processes("drawing", self.drawing),
            nvmlDeviceGetMemoryInfo=lambda _, version: self.answer(
                "memory",
                SimpleNamespace(total=80 << 30, used=self.used_bytes, free=(80 << 30) - self.used_bytes),
            ),
            nvmlDeviceGetProcessUtilization=lambda *_: self.answer("utilization", utilization()),
            nvmlDeviceGetFieldValues=self.field_values,
        )


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    """A driver with GPUs of one kind, of which this process may use the first."""
    fake = Driver()
    monkeypatch.setitem(sys.modules, "pynvml", fake.module())
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setattr(gpus, "_peak_bytes", lambda _: 2 << 30)
    for cached in (gpus._devices, gpu_facts):
        cached.cache_clear()
    yield fake
    for cached in (gpus._devices, gpu_facts):
        cached.cache_clear()


def read_one(since_s: float | None = None) -> GpuReading:
    readings = read_gpus(since_s)
    assert readings is not None
    (reading,) = readings.gpus
    return reading


@pytest.mark.parametrize("text", [str, bytes])
@pytest.mark.parametrize("visible", ["GPU-0,GPU-1", "0, 1"])
def test_each_visible_gpu_is_read(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, visible: str, text: type
) -> None:
    driver.text = text
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    read_gpus()
    readings = read_gpus()
    assert readings is not None
    whole = GpuReading(
        uuid="GPU-0",
        joules=2.5,
        busy=((5.0, 0.75),),
        own_bytes=3 << 30,
        peak_bytes=2 << 30,
        link_bytes=4096,
        pcie_bytes=1000,
        n_foreign=0,
        held_down_s={"power limit": 0.0, "heat": 0.0},
        reasons=(),
        sm_mhz=1980,
        memory_mhz=2619,
    )
    assert [replace(gpu, at_s=0.0) for gpu in readings.gpus] == [whole, replace(whole, uuid="GPU-1")]
    assert readings.gpus[0].at_s == pytest.approx(time.time(), abs=60)
    assert driver.starts == 1


@pytest.mark.parametrize("visible", ["-1", "", None])
def test_a_process_that_uses_no_gpu_has_no_reading(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, visible: str | None
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert (read_gpus(), gpu_facts()) == (None, None)
    assert not driver.starts


def test_a_counter_that_wraps_or_is_unknown_to_the_binding_has_its_reason(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver.fields[197] = SHORT, 1000
    for name in ("THROUGHPUT_DATA_TX", "COUNT_XMIT_BYTES"):
        monkeypatch.delattr(sys.modules["pynvml"], f"NVML_FI_DEV_NVLINK_{name}")
    reading = read_one()
    assert (reading.pcie_bytes, reading.link_bytes, reading.joules) == (None, None, 2.5)
    assert "32 bits" in reading.why_no["pcie_bytes"]
    assert "nvidia-ml-py does not know it" in reading.why_no["link_bytes"]


def test_newer_gpus_count_bytes_of_their_links_under_another_name(driver: Driver) -> None:
    del driver.fields[138]
    assert read_one().why_no["link_bytes"] == NOT_SUPPORTED
    driver.fields[202] = WHOLE, 4096
    assert read_one().link_bytes == 4096


@pytest.mark.parametrize(
    ("function", "names"),
    [
        ("energy", {"joules"}),
        ("samples", {"busy"}),
        ("clock", {"sm_mhz", "memory_mhz"}),
        ("computing", {"own_bytes", "n_foreign", "foreign"}),
        ("fields", {"link_bytes", "pcie_bytes", "held_down_s"}),
        ("drawing", set()),
        ("reasons", set()),
    ],
)
def test_each_figure_that_a_gpu_does_not_count_has_its_reason(
    driver: Driver, function: str, names: set[str]
) -> None:
    driver.lacking.add(function)
    reading = read_one(1.0)
    assert {name for name in GpuReading.__slots__ if getattr(reading, name) is None} == names
    assert reading.why_no == dict.fromkeys(names, NOT_SUPPORTED)


def test_what_gpus_are_is_read_once_by_kind(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(gpus, "_library_versions", lambda: ("12.9", "9.10.2"))
    driver.text = bytes
    kind = GpuFacts(
        model="NVIDIA H100 80GB HBM3", driver="580.65.06", cuda="12.9", cudnn="9.10.2", power_limit_w=700.0
    )
    assert gpu_facts() == (kind,)
    gpu_facts.cache_clear()
    driver.lacking.add("limit")
    assert gpu_facts() == (replace(kind, power_limit_w=None),)
    gpu_facts.cache_clear()
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert gpu_facts() == (GpuFacts(cuda="12.9", cudnn="9.10.2"),)


@pytest.mark.parametrize(
    ("number", "version"), [(91002, "9.10.2"), (90100, "9.1.0"), (8907, "8.9.7"), (None, None)]
)
def test_the_loaded_cudnn_says_its_own_version(
    monkeypatch: pytest.MonkeyPatch, number: int | None, version: str | None
) -> None:
    class Version:
        restype: object = None

        def __call__(self) -> int | None:
            assert self.restype is ctypes.c_size_t
            return number

    def load(_: str) -> Any:
        if number is None:
            raise OSError
        return SimpleNamespace(cudnnGetVersion=Version())

    monkeypatch.setattr(ctypes, "CDLL", load)
    assert gpus._cudnn_version("libcudnn.so.9") == version


def test_the_loaded_cuda_runtime_says_its_own_version(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(number: Any) -> int:
        number._obj.value = 12090
        return 0

    monkeypatch.setattr(ctypes, "CDLL", lambda _: SimpleNamespace(cudaRuntimeGetVersion=version))
    assert gpus._cuda_version("libcudart.so.12") == "12.9"


@pytest.mark.usefixtures("driver")
def test_why_nothing_is_known_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "no-7")
    assert read_gpus() == GpuReadings(missing="NVIDIA's driver does not report no-7: Not Found")
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert read_gpus() == GpuReadings(missing="the package nvidia-ml-py is not installed")


def test_a_part_of_a_gpu_tells_what_it_can(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-7")
    driver.lacking |= {"energy", "samples", "utilization", "fields", "clock"}
    reading = read_one(1.0)
    assert (reading.uuid, reading.own_bytes, reading.foreign) == ("MIG-7", 3 << 30, 0.0)
    assert reading.why_no["busy"] == NOT_SUPPORTED


@contextmanager
def program(folder: str | None) -> Iterator[int]:
    """Id of another program, of the run with such a folder if any."""
    environ = {name: value for name, value in os.environ.items() if name != RUN_FOLDER_VARIABLE}
    named = {} if folder is None else {RUN_FOLDER_VARIABLE: folder}
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(["cat"], **pipes, env={**environ, **named}) as started:  # type: ignore[call-overload]
        # A process that has just begun shows no variables yet.
        started.stdin.write(b"begun\n")
        started.stdin.flush()
        assert started.stdout.readline() == b"begun\n"
        yield started.pid


@pytest.mark.parametrize(("folder", "n_foreign", "foreign"), [("/a", 0, 0.0), ("/b", 1, 0.4), (None, 1, 0.4)])
def test_processes_of_this_run_are_no_strangers(
    driver: Driver, monkeypatch: pytest.MonkeyPatch, folder: str | None, n_foreign: int, foreign: float
) -> None:
    monkeypatch.setenv(RUN_FOLDER_VARIABLE, "/a")
    with program(folder) as pid:
        driver.computing.append((pid, 1 << 30))
        driver.utilization = [(os.getpid(), 60), (pid, 40)]
        reading = read_one(1.0)
    assert (reading.n_foreign, reading.foreign) == (n_foreign, foreign)


def test_programs_of_another_namespace_are_not_told_apart(driver: Driver) -> None:
    driver.computing = [(STRANGER, 1 << 30)]
    reading = read_one(1.0)
    assert (reading.own_bytes, reading.n_foreign, reading.foreign, reading.has_unlisted) == (
        None,
        None,
        None,
        False,
    )
    assert all("does not list this process" in reading.why_no[name] for name in ("own_bytes", "n_foreign"))


@pytest.mark.parametrize(("listed", "n_foreign", "foreign"), [([], 0, 0.0), ([STRANGER + 1], 1, None)])
def test_a_container_whose_driver_counts_use_by_ids_of_the_host_disturbs_nobody(
    driver: Driver, listed: list[int], n_foreign: int, foreign: float | None
) -> None:
    """Seen with driver 560: processes have the container's ids and no bytes, their use the host's ids."""
    driver.computing = [(pid, 0) for pid in (os.getpid(), *listed)]
    driver.utilization = [(STRANGER, 60)]
    reading = read_one(1.0)
    assert (reading.n_foreign, reading.foreign, reading.has_unlisted) == (n_foreign, foreign, False)
    assert reading.own_bytes is None
    assert "how much memory" in reading.why_no["own_bytes"]


@pytest.mark.parametrize(
    ("bits", "reasons"),
    [
        (0x01, ()),
        (0x04, ("power limit",)),
        (0x20 | 0x40, ("heat",)),
        (0x08 | 0x80 | 0x100, ("hardware slowdown", "power brake")),
    ],
)
@pytest.mark.parametrize("lacking", [set(), {"reasons"}], ids=["new driver", "old driver"])
def test_what_holds_clocks_down_is_named(
    driver: Driver, bits: int, reasons: tuple[str, ...], lacking: set[str]
) -> None:
    driver.bits = bits
    driver.lacking = lacking
    assert read_one().reasons == reasons


def test_without_tensorflow_or_its_gpu_a_peak_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> Any:
        raise ValueError(f"No matching devices found for '{name}'")

    monkeypatch.delitem(sys.modules, "tensorflow", raising=False)
    with pytest.raises(gpus._UnknownError, match="runs no TensorFlow"):
        gpus._peak_bytes(0)
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace())  # type: ignore[arg-type]
    monkeypatch.setattr(gpus, "_allocators", lambda: SimpleNamespace(get_memory_info=refuse))
    monkeypatch.setattr(gpus, "logical_devices", dict)
    with pytest.raises(gpus._UnknownError, match="does not answer: No matching devices found for 'GPU:3'"):
        gpus._peak_bytes(3)


def test_a_peak_begins_anew_with_each_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = {"current": 5, "peak": 9}
    fake = SimpleNamespace(
        get_memory_info=lambda name: memory if name == "GPU:1" else {},
        reset_memory_stats=lambda _: memory.update(peak=memory["current"]),
    )
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace())  # type: ignore[arg-type]
    monkeypatch.setattr(gpus, "_allocators", lambda: fake)
    monkeypatch.setattr(gpus, "logical_devices", dict)
    assert (gpus._peak_bytes(1), gpus._peak_bytes(1)) == (9, 5)


@pytest.mark.tensorflow
def test_allocators_are_asked_beside_the_context_of_eager_operations() -> None:
    tf = pytest.importorskip("tensorflow")
    from tensorflow.python.eager import context

    gpus._allocators.cache_clear()
    assert set(gpus._allocators().get_memory_info("CPU:0")) == {"current", "peak"}
    gpus._allocators().reset_memory_stats("CPU:0")
    assert gpus._allocators() is not context.context()
    assert float(tf.constant(2.0) * 3.0) == 6.0


def core_reading(at_s: float, result: GpuReadings | None) -> CoreReading:
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
        gpus=result,
    )


def gpu(joules: float | None, *, uuid: str = "a", **more: Any) -> GpuReading:
    known: dict[str, Any] = {"own_bytes": 100, "pcie_bytes": 0, "link_bytes": 0, "peak_bytes": 70}
    return GpuReading(uuid=uuid, joules=joules, **{**known, **more})


def of(*readings: GpuReading) -> GpuReadings:
    return GpuReadings(gpus=readings)


Worker = tuple[GpuReadings | None, GpuReadings | None]


def used(*workers: Worker, n_steps: int = 4) -> GpuUse | None:
    """Use in two equal windows of these workers, from readings before and after each."""
    use = core_use([(core_reading(0.0, before), core_reading(1.0, after)) for before, after in workers])
    return consumption([use, use], n_steps).gpus


def disturbed(*windows: Worker) -> Stability:
    """Disturbance of a worker's windows, each before and after."""
    uses = [core_use([(core_reading(0.0, before), core_reading(1.0, after))]) for before, after in windows]
    return stability(uses, [1.0] * len(uses))


def test_steps_of_all_windows_share_what_all_gpus_took() -> None:
    first = of(gpu(1.0)), of(gpu(3.0, pcie_bytes=40, peak_bytes=80))
    second = of(gpu(5.0, uuid="b")), of(gpu(6.0, uuid="b", link_bytes=12))
    use = used(first, second)
    assert use is not None
    assert set(use.why_no) == {"busy"}
    assert replace(use, why_no={}) == GpuUse(
        n_gpus=2,
        joules_per_step=2 * (2 + 1) / 4,
        own_bytes=100,
        peak_bytes=80,
        link_bytes_per_step=2 * 12 / 4,
        pcie_bytes_per_step=2 * 40 / 4,
    )


def test_every_figure_that_is_not_known_has_its_reason() -> None:
    lost = GpuReading(uuid="a", why_no=dict.fromkeys(GpuReading.__slots__, "lost"))
    assert used((of(gpu(1.0)), of(lost))) == GpuUse(
        n_gpus=1,
        why_no=dict.fromkeys(
            (
                "joules_per_step",
                "busy",
                "own_bytes",
                "peak_bytes",
                "link_bytes_per_step",
                "pcie_bytes_per_step",
            ),
            "lost",
        ),
    )
    disturbance = disturbed((of(gpu(1.0)), of(lost)))
    nulls = {name for name in Stability.__slots__ if "gpu" in name and getattr(disturbance, name) is None}
    assert disturbance.why_no_gpu == dict.fromkeys(nulls, "lost")
    assert nulls == {"foreign_gpu", "n_foreign_gpu", "throttled_gpu", "gpu_sm_mhz", "gpu_memory_mhz"}


def test_a_gpu_that_is_lost_within_a_window_says_so(driver: Driver) -> None:
    before = read_gpus()
    driver.is_lost = True
    use = used((before, read_gpus(1.0)))
    assert use is not None
    assert use.joules_per_step is None
    assert use.why_no["joules_per_step"] == use.why_no["busy"] == "NVIDIA's driver says: GPU is lost"


def test_samples_count_by_how_long_they_lay_in_windows() -> None:
    # The first has no known length; the second lies outside by more than its half, the third by less.
    seen = ((8.5, 1.0), (10.3, 0.9), (11.5, 0.4), (12.5, 0.2))
    use = used((of(gpu(1.0, at_s=10.0)), of(gpu(1.0, at_s=13.0, busy=seen))))
    assert use is not None
    assert use.busy == pytest.approx((1.2 * 0.4 + 1.0 * 0.2) / 2.2)


def test_a_sample_taken_after_a_short_window_is_found_by_the_next_reading() -> None:
    late = ((10.0, 0.0), (10.4, 0.8))
    first = of(gpu(1.0, at_s=10.1)), of(gpu(1.0, at_s=10.35, busy=late[:1]))
    next_ = of(gpu(1.0, at_s=13.0, busy=late)), of(gpu(1.0, at_s=13.1))
    uses = [
        core_use([(core_reading(0.0, before), core_reading(1.0, after))]) for before, after in (first, next_)
    ]
    result = consumption(uses, 4).gpus
    assert result is not None
    assert result.busy == pytest.approx(0.8)


def test_without_a_sample_in_a_window_the_reason_says_what_helps() -> None:
    use = used((of(gpu(1.0, at_s=10.0)), of(gpu(1.0, at_s=10.1, busy=((9.5, 1.0), (10.4, 1.0))))))
    assert use is not None
    assert use.busy is None
    assert "raise measure.window_s" in use.why_no["busy"]


def test_a_gpu_that_two_workers_share_counts_once() -> None:
    unlisted = {"n_foreign": 0, "foreign": 0.0, "has_unlisted": True}
    worker = of(gpu(1.0)), of(gpu(3.0, **unlisted))
    other = of(gpu(1.0)), of(gpu(3.0, peak_bytes=90, **unlisted))
    shared = used(worker, other)
    assert shared is not None
    assert (shared.n_gpus, shared.joules_per_step, shared.peak_bytes) == (1, 1.0, 90)
    use = core_use(
        [(core_reading(0.0, before), core_reading(1.0, after)) for before, after in (worker, other)]
    )
    # What the driver does not list in the container of one is the other.
    assert stability([use], [1.0]).n_foreign_gpu == 0


@pytest.mark.parametrize("after_j", [None, 0.5], ids=["not counted", "driver loaded anew"])
def test_what_one_gpu_does_not_tell_is_not_made_up(after_j: float | None) -> None:
    use = used((of(gpu(1.0)), of(gpu(after_j))))
    assert use is not None
    assert (use.joules_per_step, use.own_bytes) == (None, 100)
    assert use.why_no["joules_per_step"]


def test_without_gpus_there_is_nothing_and_without_a_driver_a_reason() -> None:
    assert used((None, None)) is None
    silent = GpuReadings(missing="no driver")
    assert used((silent, silent)) == GpuUse(why_none="no driver")


def read_at(at_s: float) -> GpuReadings:
    return of(replace(read_one(1.0), at_s=at_s))


def test_a_program_that_appears_in_a_window_is_noticed(driver: Driver) -> None:
    quiet = read_at(1.0), read_at(2.0)
    assert disturbed(quiet).grade == "steady"
    driver.computing.append((STRANGER, 1 << 30))
    driver.utilization = [(os.getpid(), 50), (STRANGER, 50)]
    disturbance = disturbed(quiet, (quiet[1], read_at(3.0)))
    assert (disturbance.n_foreign_gpu, disturbance.foreign_gpu, disturbance.grade) == (
        1,
        pytest.approx(0.25),
        "disturbed",
    )


def test_a_program_whose_use_is_not_known_makes_a_repeat_unsteady(driver: Driver) -> None:
    driver.lacking.add("utilization")
    driver.drawing.append((STRANGER, None))
    disturbance = disturbed((read_gpus(), read_gpus(1.0)))
    assert (disturbance.n_foreign_gpu, disturbance.foreign_gpu, disturbance.grade) == (1, None, "unsteady")
    assert disturbance.why_no_gpu["foreign_gpu"] == NOT_SUPPORTED


def test_memory_that_no_listed_program_holds_is_of_another_one(driver: Driver) -> None:
    quiet = read_gpus()
    driver.used_bytes += 2 << 30
    disturbance = disturbed((quiet, read_gpus(1.0)))
    assert (disturbance.n_foreign_gpu, disturbance.foreign_gpu, disturbance.grade) == (1, None, "unsteady")
    assert "does not list here" in disturbance.why_no_gpu["foreign_gpu"]


class _OneLoss(StepSession):
    def load(self) -> None:
        raise NotImplementedError

    read = held_bytes = load  # type: ignore[assignment]

    def step(self, feeds: object) -> list[Any]:
        return [np.float64(1.0)]


def test_steps_are_read_around_and_strangers_count_from_their_begin(driver: Driver) -> None:
    began_s: list[float] = []

    def utilization(_: str, since_us: int) -> list[Any]:
        assert began_s[0] - 60 < since_us / 1e6 <= time.time()
        return [SimpleNamespace(pid=STRANGER, smUtil=30)]

    driver.computing.append((STRANGER, 1 << 30))
    sys.modules["pynvml"].nvmlDeviceGetProcessUtilization = utilization  # type: ignore[attr-defined]
    state = JobState()
    state.put(Training(session=_OneLoss(), task=0, weights=(1.0,), feeds=[[np.zeros(1)]]))
    began_s.append(time.time())
    cores = run_steps(state, 2, 0).cores
    assert cores is not None
    before, after = (reading.gpus for reading in cores)
    assert before is not None
    assert after is not None
    assert (before.gpus[0].foreign, after.gpus[0].foreign) == (None, 0.3)


@pytest.mark.parametrize(
    ("held_down_s", "reasons", "share", "slowdowns", "grade"),
    [
        ({"power limit": 0.0, "heat": 0.0}, (), 0.0, (), "steady"),
        ({"power limit": 0.2, "heat": 0.2}, ("power limit",), 0.1, ("power limit", "heat"), "unsteady"),
        ({"power limit": 0.1, "heat": 0.8}, (), 0.4, ("power limit", "heat"), "disturbed"),
        ({"power limit": 9.9, "heat": 0.0}, (), 0.0, ("power limit",), "steady"),
        ({"power limit": 0.0, "heat": 9.9}, (), 1.0, ("heat",), "disturbed"),
        ({"power limit": 0.0, "heat": 0.0}, ("power brake",), 1.0, ("power brake",), "disturbed"),
        (None, ("power limit",), 0.0, ("power limit",), "steady"),
        (None, (), 0.0, (), "steady"),
    ],
)
def test_throttled_gpus_are_graded_as_throttled_cores(
    held_down_s: dict[str, float] | None,
    reasons: tuple[str, ...],
    share: float,
    slowdowns: tuple[str, ...],
    grade: str,
) -> None:
    start = None if held_down_s is None else dict.fromkeys(held_down_s, 7.0)
    end = None if held_down_s is None else {what: 7.0 + s for what, s in held_down_s.items()}
    clocks = {"sm_mhz": 1500, "memory_mhz": 2619}
    before = gpu(1.0, at_s=10.0, held_down_s=start, **clocks)
    after = gpu(1.0, at_s=12.0, held_down_s=end, reasons=reasons, n_foreign=0, foreign=0.0, **clocks)
    disturbance = disturbed((of(before), of(after)))
    assert disturbance.throttled_gpu == pytest.approx(share)
    assert (disturbance.gpu_slowdowns, disturbance.grade) == (slowdowns, grade)
    assert (disturbance.gpu_sm_mhz, disturbance.gpu_memory_mhz, disturbance.why_no_gpu) == (
        1500.0,
        2619.0,
        {},
    )


def test_memory_that_is_left_is_known_by_gpu_and_beside_the_hosts(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    uuid = read_one().uuid
    assert gpus.gpu_memory_bytes("free") == {uuid: 77 << 30}
    assert gpus.gpu_memory_bytes("total") == {uuid: 80 << 30}
    monkeypatch.setattr(read, "memory_left_bytes", lambda _: None)
    assert read.memory_left(JobState()) == {uuid: 77 << 30}
    monkeypatch.setattr(read, "memory_left_bytes", lambda _: 5)
    assert read.memory_left(JobState()) == {"host": 5, uuid: 77 << 30}
    driver.is_lost = True
    gpus._devices.cache_clear()
    assert gpus.gpu_memory_bytes("free") == {}
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert read.memory_left(JobState()) == {"host": 5}


def test_energy_and_clocks_are_read_at_the_edges_of_a_window(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[str] = []

    def called(name: str) -> Callable[..., dict[str, object]]:
        def call(*_: object) -> dict[str, object]:
            calls.append(name)
            return {}

        return call

    for name in ("at_edge", "beside"):
        monkeypatch.setattr(gpus._Reader, name, called(name))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    monkeypatch.setattr(gpus, "_devices", lambda visible: [(0, "GPU-0", None), (1, "GPU-1", None)])
    monkeypatch.setitem(sys.modules, "pynvml", SimpleNamespace(NVMLError=OSError))
    gpus.read_gpus()
    gpus.read_gpus(0.0)
    assert calls == ["beside", "beside", "at_edge", "at_edge", "at_edge", "at_edge", "beside", "beside"]
