"""GPUs that TensorFlow sees in a fresh process, and the CUDA libraries that it cannot open.

TensorFlow uses the CPU without an error when it cannot open one of its CUDA libraries. Runs on GPUs are
therefore held to what `tensorflow_gpus` finds. As a program it prints the GPUs as JSON.
"""

import ctypes
import importlib.util
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.module_command import module_command

_PATH_VARIABLE = "LD_LIBRARY_PATH"
_TIMEOUT_S = 120.0
_SEARCHED = re.compile(r"find library=(\S+) \[")
_LOADED = re.compile(r"calling init: \S*/(\S+)")
# As in `E0000 00:00:1795805814.533330   17075 cuda_platform.cc:52] failed call to cuInit: …`.
_ERROR = re.compile(r"^E\d{4} \S+ +\d+ \S+\] (.*)$", re.MULTILINE)
# Opens all CUDA libraries; by itself TensorFlow does so only once the driver has shown it a GPU. Source:
# DsoLoader::MaybeTryDlopenGPULibraries, xla/tsl/platform/default/dlopen_checker.cc.
_OPEN_ALL = "_ZN3tsl8internal9DsoLoader26MaybeTryDlopenGPULibrariesEv"
_STATUS_BYTES = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class TensorFlowGpus:
    """GPUs that TensorFlow sees.

    Attributes:
        names: models, in TensorFlow's order.
        cuda, cudnn: versions that TensorFlow was built for; None for a build without CUDA.
        missing: libraries that it looked for and could not open.
        error: TensorFlow's own last error line; None if there was none.
    """

    names: tuple[str, ...] = ()
    cuda: str | None = None
    cudnn: str | None = None
    missing: tuple[str, ...] = ()
    error: str | None = None

    @property
    def why_fewer(self) -> tuple[str, str]:
        """Reason for which TensorFlow sees fewer GPUs than the driver has, and the way out."""
        if self.missing:
            problem = f"it cannot open {', '.join(self.missing)}"
        elif self.cuda is None:
            problem = "it was built without CUDA"
        else:
            problem = self.error or "it gives no reason"
        of_driver = [name for name in self.missing if name.startswith("libcuda.")]
        ways = ["install NVIDIA's driver, or start this container with it"] if of_driver else []
        if not of_driver or len(self.missing) > len(of_driver):
            ways.append("run `make setup DEVICE=gpu` with a fresh .venv")
        return problem, ", and ".join(ways)


def library_path(environment: Mapping[str, str]) -> dict[str, str]:
    """Return LD_LIBRARY_PATH with the CUDA libraries that pip installed beside this Python, if there are any.

    They come after folders that the user named. TensorFlow 2.21 does not find libcusolver without: the
    RUNPATH of libtensorflow_framework lacks its folder.
    """
    package = importlib.util.find_spec("nvidia")
    roots = (package.submodule_search_locations or ()) if package is not None else ()
    folders = [str(folder) for root in roots for folder in sorted(Path(root).glob("*/lib"))]
    named = environment.get(_PATH_VARIABLE)
    return {_PATH_VARIABLE: ":".join([*([named] if named else []), *folders])} if folders else {}


def tensorflow_gpus(environment: Mapping[str, str] = os.environ) -> TensorFlowGpus:
    """Ask TensorFlow in a process of its own which GPUs it sees.

    The dynamic loader logs what the process opens (LD_DEBUG, ld.so(8)), so that missing libraries are named
    however TensorFlow reports them.

    Args:
        environment: of that process.
    """
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "loader"
        try:
            asked = subprocess.run(
                module_command("harness.worker.process.tensorflow_gpus"),
                env={**environment, "LD_DEBUG": "libs", "LD_DEBUG_OUTPUT": str(log)},
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return TensorFlowGpus(error=f"it gave no answer within {_TIMEOUT_S:.0f} s")
        answer = _answer(asked.stdout)
        if answer is None:
            lines = asked.stderr.strip().splitlines() or ["no output"]
            return TensorFlowGpus(error=f"its process ended with status {asked.returncode}: {lines[-1]}")
        opened = Path(f"{log}.{answer['pid']}")
        loaded = opened.read_text(errors="replace") if opened.exists() else ""
    errors = _ERROR.findall(asked.stderr)
    return TensorFlowGpus(
        names=tuple(answer["names"]),
        cuda=answer["cuda"],
        cudnn=answer["cudnn"],
        missing=_missing(loaded),
        error=errors[-1] if errors else None,
    )


def _answer(output: str) -> dict[str, Any] | None:
    try:
        answer = json.loads(output.splitlines()[-1])
    except (ValueError, IndexError):
        return None
    return answer if isinstance(answer, dict) else None


def make_logical_devices(memory_mib: Sequence[Sequence[int]]) -> None:
    """Divide the GPUs of this process, before TensorFlow uses any.

    Args:
        memory_mib: of each logical device by GPU.
    """
    import tensorflow as tf

    for gpu, parts in zip(tf.config.list_physical_devices("GPU"), memory_mib, strict=True):
        devices = [tf.config.LogicalDeviceConfiguration(memory_limit=n) for n in parts]
        tf.config.set_logical_device_configuration(gpu, devices)


def logical_devices() -> dict[Any, list[Any]]:
    """The GPUs of this process that are divided → their logical devices; TensorFlow numbers these in turn."""
    import tensorflow as tf

    gpus = tf.config.list_physical_devices("GPU")
    divided = {gpu: tf.config.get_logical_device_configuration(gpu) for gpu in gpus}
    return {gpu: list(devices) for gpu, devices in divided.items() if devices}


def _missing(log: str) -> tuple[str, ...]:
    """Libraries that the loader looked for and never initialised."""
    loaded = set(_LOADED.findall(log))
    return tuple(name for name in dict.fromkeys(_SEARCHED.findall(log)) if name not in loaded)


def _print_gpus() -> None:
    import tensorflow as tf

    devices = tf.config.list_physical_devices("GPU")
    built = tf.sysconfig.get_build_info()
    if built["is_cuda_build"]:
        _open_all(Path(tf.__file__).parent)
    answer = {
        "pid": os.getpid(),
        "names": [
            str(tf.config.experimental.get_device_details(d).get("device_name", d.name)) for d in devices
        ],
        "cuda": built.get("cuda_version"),
        "cudnn": built.get("cudnn_version"),
    }
    sys.stdout.write(json.dumps(answer) + "\n")


def _open_all(tensorflow: Path) -> None:
    (library,) = tensorflow.glob("libtensorflow_framework.so.*")
    open_all = getattr(ctypes.CDLL(str(library)), _OPEN_ALL, None)
    if open_all is not None:
        open_all.argtypes, open_all.restype = [ctypes.c_void_p], None
        open_all(ctypes.create_string_buffer(_STATUS_BYTES))  # the status that it returns


if __name__ == "__main__":
    _print_gpus()
