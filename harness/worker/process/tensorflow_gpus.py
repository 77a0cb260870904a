"""GPUs that TensorFlow sees in a new process, and the CUDA libraries that it cannot open.

If TensorFlow cannot open one of its CUDA libraries, it uses the CPU without an error. So runs on GPUs are
checked against `tensorflow_gpus`. Run as a program, this module prints the GPUs as JSON.
"""

import ctypes
import importlib.util
import json
import os
import platform
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.errors import first_line
from harness.processes import module_command

_PATH_VARIABLE = "LD_LIBRARY_PATH"
# Shorter than the time limit of a server's start, during which this runs.
_TIMEOUT_S = 45.0
_SEARCHED = re.compile(r"find library=(\S+) \[")
_LOADED = re.compile(r"calling init: \S*/(\S+)")
_TRIED = re.compile(r"trying file=(\S*/(\S+))")
# Such as `E0000 00:00:1795805814.533330   17075 cuda_platform.cc:52] failed call to cuInit: …`.
# TensorFlow logs a GPU that is too old below the level of errors.
_ERROR = re.compile(
    r"^(?:E\d{4} \S+ +\d+ \S+\] |\w\d{4} \S+ +\d+ \S+\] (?=Ignoring visible gpu device))(.*)$", re.MULTILINE
)
# Libraries of NVIDIA's driver, not from pip.
_OF_DRIVER = ("libcuda.", "libnvidia-")
# Opens all CUDA libraries; TensorFlow does so only once the driver has shown it a GPU. Source:
# DsoLoader::MaybeTryDlopenGPULibraries, xla/tsl/platform/default/dlopen_checker.cc.
_OPEN_ALL = "_ZN3tsl8internal9DsoLoader26MaybeTryDlopenGPULibrariesEv"
_STATUS_BYTES = 64
# It logs everything, and takes only the GPU memory that it needs.
_TENSORFLOW = {"TF_CPP_MIN_LOG_LEVEL": "0", "TF_FORCE_GPU_ALLOW_GROWTH": "true"}


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorFlowGpus:
    """GPUs that TensorFlow sees and can make devices of.

    Attributes:
        names: names of GPU models, in TensorFlow's order.
        cuda, cudnn: versions that TensorFlow was built for; None for a build without CUDA.
        missing: libraries that TensorFlow could not open. unloadable: library → file, for those of them that
            exist, but cannot be loaded or lack one that they need.
        error: TensorFlow's last error line, or the reason why it did not answer; None without an error.
    """

    names: tuple[str, ...] = ()
    cuda: str | None = None
    cudnn: str | None = None
    missing: tuple[str, ...] = ()
    unloadable: Mapping[str, str] = field(default_factory=dict)
    error: str | None = None

    @property
    def why_fewer(self) -> tuple[str, str]:
        """Reason why TensorFlow sees fewer GPUs than the driver, and the instruction for the user."""
        install = "run `make setup DEVICE=gpu` with a fresh .venv"
        if self.missing:
            of_driver = [name for name in self.missing if name.startswith(_OF_DRIVER)]
            ways = ["install NVIDIA's driver, or start this container with it"] if of_driver else []
            if len(self.missing) > len(of_driver):
                ways.append(install)
            if self.unloadable:
                ways.append(f"see that {_PATH_VARIABLE} names no folder with other libraries of CUDA")
            files = [self.unloadable.get(name, name) for name in self.missing]
            return f"it cannot open {', '.join(files)}", ", and ".join(ways)
        if self.cuda is None and self.error is None:
            return "it was built without CUDA", install
        problem = self.error or "NVIDIA's driver shows it none"
        if self.cuda is None:
            return problem, f"see that TensorFlow lists GPUs in a Python of this environment, or {install}"
        return (
            problem,
            f"see that NVIDIA's driver works and the GPU and it are new enough for CUDA {self.cuda}",
        )


def library_path(environment: Mapping[str, str]) -> dict[str, str]:
    """LD_LIBRARY_PATH with the CUDA libraries that pip installed for this Python, if there are any.

    They come after the user's folders. Without it, TensorFlow 2.21 does not find libcusolver: the RUNPATH of
    libtensorflow_framework lacks its folder.
    """
    package = importlib.util.find_spec("nvidia")
    roots = (package.submodule_search_locations or ()) if package is not None else ()
    folders = [str(folder) for root in roots for folder in sorted(Path(root).glob("*/lib"))]
    named = environment.get(_PATH_VARIABLE)
    return {_PATH_VARIABLE: ":".join([*([named] if named else []), *folders])} if folders else {}


def tensorflow_gpus(environment: Mapping[str, str] = os.environ) -> TensorFlowGpus:
    """Read in a separate process which GPUs TensorFlow sees.

    The dynamic loader logs the libraries that the process opens (LD_DEBUG, ld.so(8)); so missing ones can be
    named whatever TensorFlow reports.

    Args:
        environment: environment of that process.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "loader"
        try:
            process = subprocess.run(
                module_command("harness.worker.process.tensorflow_gpus"),
                env={**environment, "LD_DEBUG": "libs", "LD_DEBUG_OUTPUT": str(log), **_TENSORFLOW},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return TensorFlowGpus(error=f"it gave no answer within {_TIMEOUT_S:.0f} s")
        answer = _answer(process.stdout)
        if answer is None:
            return TensorFlowGpus(error=_end(process.returncode, process.stderr))
        opened = Path(f"{log}.{answer['pid']}")
        loaded = opened.read_text(errors="replace") if opened.exists() else ""
    errors = _ERROR.findall(process.stderr)
    missing = _missing(loaded)
    return TensorFlowGpus(
        names=tuple(answer["names"]),
        cuda=answer["cuda"],
        cudnn=answer["cudnn"],
        missing=missing,
        unloadable={
            name: file for file, name in _TRIED.findall(loaded) if name in missing and Path(file).is_file()
        },
        error=answer["error"] or (errors[-1] if errors else None),
    )


def _end(status: int, output: str) -> str:
    """Text for a process that gave no answer."""
    if status < 0:
        # Its last line may be unrelated.
        return f"its process was killed by signal {-status} ({signal.strsignal(-status)})"
    lines = output.strip().splitlines() or ["no output"]
    return f"its process ended with status {status}: {lines[-1]}"


def _answer(output: str) -> dict[str, Any] | None:
    try:
        answer = json.loads(output.splitlines()[-1])
    except (ValueError, IndexError):
        return None
    return answer if isinstance(answer, dict) else None


def make_logical_devices(memory_mib: Sequence[Sequence[int]]) -> None:
    """Divide the GPUs of this process, before TensorFlow uses any.

    Args:
        memory_mib: memory of each logical device, by GPU.
    """
    import tensorflow as tf

    for gpu, parts in zip(tf.config.list_physical_devices("GPU"), memory_mib, strict=True):
        devices = [tf.config.LogicalDeviceConfiguration(memory_limit=n) for n in parts]
        tf.config.set_logical_device_configuration(gpu, devices)


def logical_devices() -> dict[Any, list[Any]]:
    """Divided GPUs of this process → their logical devices, which TensorFlow numbers in turn."""
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    divided = {gpu: tf.config.get_logical_device_configuration(gpu) for gpu in gpus}
    return {gpu: list(devices) for gpu, devices in divided.items() if devices}


def _missing(log: str) -> tuple[str, ...]:
    """Libraries that the loader looked for and never initialised, in any length of their version.

    cuDNN looks for `libcudnn_graph.so.9.28.0` before `libcudnn_graph.so.9`.
    """
    loaded = set(_LOADED.findall(log))

    def is_there(name: str) -> bool:
        return any(other.startswith(f"{name}.") or f"{name}.".startswith(f"{other}.") for other in loaded)

    return tuple(name for name in dict.fromkeys(_SEARCHED.findall(log)) if not is_there(name))


def make_devices() -> None:
    """Make TensorFlow's devices, without the context of eager operations, which workload code may set up.

    Raises:
        tf.errors.OpError: TensorFlow cannot make one of a GPU that it sees.
    """
    import tensorflow as tf

    tf.compat.v1.Session(graph=tf.Graph()).close()


def _print_gpus() -> None:
    import tensorflow as tf

    devices = tf.config.list_physical_devices("GPU")
    built = tf.sysconfig.get_build_info()
    if built["is_cuda_build"]:
        _open_all(Path(tf.__file__).parent)
    details = [tf.config.experimental.get_device_details(device) for device in devices]
    try:
        make_devices()
        error = None
    except tf.errors.OpError as refusal:
        error = first_line(refusal.message)
    answer = {
        "pid": os.getpid(),
        "names": [] if error else [str(detail.get("device_name", "unknown")) for detail in details],
        "cuda": built.get("cuda_version"),
        "cudnn": built.get("cudnn_version"),
        "error": error,
    }
    sys.stdout.write(json.dumps(answer) + "\n")


def _open_all(tensorflow: Path) -> None:
    library = next(tensorflow.glob("libtensorflow_framework.so.*"), None)
    # On other architectures, a status is returned in another way.
    if library is None or platform.machine() != "x86_64":
        return
    open_all = getattr(ctypes.CDLL(str(library)), _OPEN_ALL, None)
    if open_all is not None:
        open_all.argtypes, open_all.restype = [ctypes.c_void_p], None
        open_all(ctypes.create_string_buffer(_STATUS_BYTES))  # the returned status


if __name__ == "__main__":
    _print_gpus()
