"""GPUs that TensorFlow sees, asked of a stand-in for TensorFlow in a process of its own."""

import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.errors import NO_DEVICE, CaseError
from harness.worker.counters import gpus as counters
from harness.worker.jobs import gpus
from harness.worker.jobs.gpus import start_on_gpus
from harness.worker.process.job import JobState
from harness.worker.process.tensorflow_gpus import TensorFlowGpus, _open_all, library_path, tensorflow_gpus

STAND_IN = """
import ctypes, sys
from types import SimpleNamespace

names, libraries, refusal = {names!r}, {libraries!r}, {refusal!r}
for library in libraries:
    try:
        ctypes.CDLL(library)
    except OSError:
        sys.stderr.write("E0000 00:00:1.2 7 cuda_platform.cc:52] failed call to cuInit: 303\\n")
config = SimpleNamespace(
    list_physical_devices=lambda kind: [SimpleNamespace(name=name) for name in names],
    experimental=SimpleNamespace(get_device_details=lambda device: {{"device_name": device.name}}),
)
class OpError(Exception):
    message = refusal


def session(graph):
    if refusal:
        raise OpError
    return SimpleNamespace(close=lambda: None)


sys.stderr.write({said!r})
Graph, errors = object, SimpleNamespace(OpError=OpError)
compat = SimpleNamespace(v1=SimpleNamespace(Session=session))
built = {{"is_cuda_build": False, "cuda_version": "12.5", "cudnn_version": "9"}}
sysconfig = SimpleNamespace(get_build_info=lambda: built)
"""

Ask = Callable[..., TensorFlowGpus]


@pytest.fixture
def ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ask:
    def ask(
        *, names: tuple[str, ...] = (), libraries: tuple[str, ...] = (), refusal: str = "", output: str = ""
    ) -> TensorFlowGpus:
        stand_in = STAND_IN.format(names=names, libraries=libraries, refusal=refusal, said=output)
        (tmp_path / "tensorflow.py").write_text(stand_in)
        monkeypatch.setenv("PYTHONPATH", str(tmp_path))
        return tensorflow_gpus()

    return ask


def test_gpus_are_named(ask: Ask) -> None:
    assert ask(names=("NVIDIA T",)) == TensorFlowGpus(names=("NVIDIA T",), cuda="12.5", cudnn="9")


def test_libraries_that_are_not_found_are_named(ask: Ask) -> None:
    seen = ask(libraries=("libcusolver.so.99", "libm.so.6", "libcuda.so.99"))
    assert seen.missing == ("libcusolver.so.99", "libcuda.so.99")
    problem, way_out = seen.why_fewer
    assert problem == "it cannot open libcusolver.so.99, libcuda.so.99"
    assert "driver" in way_out
    assert "make setup" in way_out


def test_a_library_of_which_another_spelling_is_loaded_is_not_missing(ask: Ask) -> None:
    assert ask(libraries=("libm.so.6.28.0", "libm.so.6")).missing == ()


@pytest.mark.parametrize(
    ("library", "way_out"), [("libnvidia-ml.so.99", "driver"), ("libcufft.so.99", "make setup")]
)
def test_the_way_out_is_to_install_what_a_library_comes_with(ask: Ask, library: str, way_out: str) -> None:
    others = {"driver", "make setup"} - {way_out}
    _, output = ask(libraries=(library,)).why_fewer
    assert way_out in output
    assert not any(other in output for other in others)


def test_a_gpu_that_tensorflow_makes_no_device_of_is_not_seen(ask: Ask) -> None:
    seen = ask(names=("NVIDIA T",), refusal="cudaGetDevice() failed. Status: driver too old\nmore")
    problem, way_out = seen.why_fewer
    assert (seen.names, problem) == ((), "cudaGetDevice() failed. Status: driver too old")
    assert "driver" in way_out


def test_a_gpu_that_is_too_old_is_the_reason(ask: Ask) -> None:
    line = "Ignoring visible gpu device (device: 0) with Cuda compute capability 2.0."
    message = f"I0000 00:00:1.2 7 gpu_device.cc:2412] {line}\nI0000 00:00:1.3 7 port.cc:1] another\n"
    assert ask(output=message).why_fewer[0] == line


def test_a_driver_that_shows_no_gpu_is_the_reason(ask: Ask) -> None:
    problem, way_out = ask().why_fewer
    assert problem == "NVIDIA's driver shows it none"
    assert "make setup" not in way_out


def test_a_library_that_cannot_be_loaded_is_named(
    ask: Ask, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = tmp_path / "libcufft.so.11"
    damaged.write_bytes(b"no library")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    seen = ask(libraries=("libcufft.so.11", "libcublas.so.99"))
    assert seen.missing == ("libcufft.so.11", "libcublas.so.99")
    problem, way_out = seen.why_fewer
    assert problem == f"it cannot open {damaged}, libcublas.so.99"
    assert "LD_LIBRARY_PATH" in way_out


@pytest.mark.parametrize(
    ("code", "end"),
    [
        ("raise ImportError('no such wheel')", "ended with status 1: ImportError: no such wheel"),
        ("import os; print('hello'); os.abort()", "was killed by signal 6 (Aborted)"),
    ],
)
def test_a_process_that_fails_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, end: str
) -> None:
    (tmp_path / "tensorflow.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert tensorflow_gpus().why_fewer[0] == f"its process {end}"


def test_the_last_error_of_tensorflow_is_kept(ask: Ask) -> None:
    assert ask(libraries=("libcuda.so.99",)).error == "failed call to cuInit: 303"


@pytest.mark.parametrize(
    ("machine", "files"), [("aarch64", ["libtensorflow_framework.so.2"]), ("x86_64", [])]
)
def test_libraries_are_opened_only_as_this_processor_calls_the_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, machine: str, files: list[str]
) -> None:
    for name in files:
        (tmp_path / name).touch()
    monkeypatch.setattr("platform.machine", lambda: machine)
    monkeypatch.setattr("ctypes.CDLL", pytest.fail)
    _open_all(tmp_path)


def test_a_build_without_cuda_is_the_reason() -> None:
    assert TensorFlowGpus().why_fewer[0] == "it was built without CUDA"


@pytest.fixture
def pip_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    folders = [tmp_path / "nvidia" / name / "lib" for name in ("cublas", "cusolver")]
    for folder in folders:
        folder.mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    return list(map(str, folders))


def test_cuda_libraries_of_pip_follow_folders_of_the_user(pip_cuda: list[str]) -> None:
    assert library_path({}) == {"LD_LIBRARY_PATH": ":".join(pip_cuda)}
    assert library_path({"LD_LIBRARY_PATH": "/own"}) == {"LD_LIBRARY_PATH": ":".join(["/own", *pip_cuda])}


def test_without_cuda_libraries_of_pip_nothing_is_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert library_path({"LD_LIBRARY_PATH": "/own"}) == {}


class InternalError(Exception):
    @property
    def message(self) -> str:
        return str(self)


@pytest.fixture
def sees(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    def sees(n_gpus: int) -> None:
        config = SimpleNamespace(list_physical_devices=lambda kind: [kind] * n_gpus)
        stand_in = SimpleNamespace(config=config, errors=SimpleNamespace(InternalError=InternalError))
        monkeypatch.setitem(sys.modules, "tensorflow", stand_in)

    return sees


def started(n_gpus: int) -> list[int]:
    tasks: list[int] = []

    def server(state: JobState, task: int, addresses: Sequence[str], n_devices: int) -> None:
        tasks.append(task)

    start_on_gpus(JobState(), 1, ["a:1", "b:1"], 1, server=server, n_gpus=[0, n_gpus])
    return tasks


def test_a_server_starts_with_exactly_the_gpus_of_its_worker(sees: Callable[[int], None]) -> None:
    sees(2)
    assert started(2) == [1]


def test_a_worker_without_its_gpus_fails_with_the_library(
    sees: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    sees(1)
    seen = TensorFlowGpus(cuda="12.5", missing=("libcusolver.so.11",))
    monkeypatch.setattr(gpus, "tensorflow_gpus", lambda: seen)
    with pytest.raises(
        CaseError, match=r"worker 1: TensorFlow sees 1 GPUs where the worker has 2: .*libcusolver"
    ) as failed:
        started(2)
    assert (failed.value.kind, failed.value.stage) == (NO_DEVICE, "provision")


def test_a_worker_that_sees_gpus_of_others_fails(
    sees: Callable[[int], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    sees(2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-1,GPU-2")
    with pytest.raises(
        CaseError, match="sees 2 GPUs where the worker has 1: CUDA_VISIBLE_DEVICES=GPU-1,GPU-2"
    ):
        started(1)


class DividedGpus:
    """TensorFlow's settings of two GPUs."""

    LogicalDeviceConfiguration = SimpleNamespace

    def __init__(self) -> None:
        self.of: dict[str, list[SimpleNamespace]] = {}

    def list_physical_devices(self, kind: str) -> list[str]:
        return [f"{kind}:0", f"{kind}:1"]

    def set_logical_device_configuration(self, gpu: str, devices: list[SimpleNamespace]) -> None:
        self.of[gpu] = devices

    def get_logical_device_configuration(self, gpu: str) -> list[SimpleNamespace] | None:
        return self.of.get(gpu)


@pytest.fixture
def divided(monkeypatch: pytest.MonkeyPatch) -> DividedGpus:
    config = DividedGpus()
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(config=config))
    return config


def test_replicas_that_share_gpus_get_logical_devices_before_their_server(divided: DividedGpus) -> None:
    seen: list[dict[str, list[int]]] = []

    def server(state: JobState, task: int, addresses: Sequence[str], n_devices: int) -> None:
        seen.append({gpu: [device.memory_limit for device in own] for gpu, own in divided.of.items()})

    shared_mib = [[[1]], [[4500, 4500], [9000]]]
    start_on_gpus(JobState(), 1, ["a:1", "b:1"], 1, server=server, n_gpus=[1, 2], shared_mib=shared_mib)
    assert seen == [{"GPU:0": [4500, 4500], "GPU:1": [9000]}]
    assert [list(counters._device_numbers(k)) for k in range(2)] == [[0, 1], [2]]


def test_a_gpu_that_nobody_shares_is_one_device(divided: DividedGpus) -> None:
    start_on_gpus(JobState(), 0, ["a:1"], 1, server=lambda *_: None, n_gpus=[2])
    assert divided.of == {}
    assert [list(counters._device_numbers(k)) for k in range(2)] == [[0], [1]]


@pytest.mark.tensorflow
def test_servers_and_sessions_have_the_logical_devices_of_their_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("tensorflow")
    from harness.worker.session import tensorflow_settings
    from harness.worker.session.tensorflow_settings import OWN_DEVICES, Use, session_config

    step = SimpleNamespace(steps_per_run=None)
    program: Any = SimpleNamespace(n_devices=1, n_waiting=0, step=step, group_leader=None)

    def limits() -> list[list[int]]:
        options = session_config(program, Use.MANY_STEPS, OWN_DEVICES).gpu_options
        assert options.allow_growth
        return [list(own.memory_limit_mb) for own in options.experimental.virtual_devices]

    assert limits() == []
    parts = {gpu: [SimpleNamespace(memory_limit=n) for n in own] for gpu, own in ((0, [4, 4]), (1, [9]))}
    monkeypatch.setattr(tensorflow_settings, "logical_devices", lambda: parts)
    assert limits() == [[4, 4], [9]]


def test_a_gpu_that_no_server_can_use_is_no_device(sees: Callable[[int], None]) -> None:
    sees(1)

    def refuse(state: JobState, task: int, addresses: Sequence[str], n_devices: int) -> None:
        raise InternalError("cudaGetDevice() failed")

    with pytest.raises(
        CaseError, match=r"worker 0: TensorFlow cannot use a GPU .*: cudaGetDevice\(\) failed;"
    ) as failed:
        start_on_gpus(JobState(), 0, ["a:1"], 1, server=refuse, n_gpus=[1])
    assert (failed.value.kind, failed.value.stage) == (NO_DEVICE, "provision")
