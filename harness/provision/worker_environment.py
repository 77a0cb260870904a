"""Environment variables of every process that runs a workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness.worker.process.os_process import RUN_FOLDER_VARIABLE

if TYPE_CHECKING:
    from harness.cluster import Hardware

WORKER_IMPORTS = ("tensorflow", "keras", "harness.worker.counters.read")
"""Imports of a worker's fork server before it forks."""

# With these, libtpu accepts a part of a host's chips. Source: Ray's TPUAcceleratorManager, after
# https://github.com/google/jax/issues/14977.
_BOUNDS = {1: "1,1,1", 2: "1,2,1"}

# glibc shall keep freed memory, see mallopt(3). By default it maps and unmaps every large tensor, with a page
# fault for each page. A single arena limits the kept memory.
_KEPT_MEMORY = {"MALLOC_MMAP_MAX_": "0", "MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_ARENA_MAX": "1"}


def temporary_folder(folder: Path) -> Path:
    """Make the folder for temporary files of processes on this machine, in the run's folder."""
    temporary = folder / "tmp"
    temporary.mkdir(exist_ok=True)
    return temporary


def process_variables(
    folder: Path, device: Hardware, temporary: Path, own: Sequence[str] = ()
) -> Mapping[str, str]:
    """Environment variables for a worker's processes, besides the inherited ones.

    Args:
        folder: folder of the run, which marks its processes.
        temporary: working folder of the processes, removed with them.
        own: devices that only these processes see, see `accelerators.shared_out`; empty if Ray assigns them
            to the actor.
    """
    variables = {
        RUN_FOLDER_VARIABLE: str(folder),
        # TensorFlow leaves files here when its process is killed.
        "TMPDIR": str(temporary),
        "KERAS_HOME": str(temporary / "keras"),  # else Keras writes a file into the home directory
        "KERAS_BACKEND": "tensorflow",
        "OPENBLAS_NUM_THREADS": "1",  # a process with threads cannot be forked safely
        **_KEPT_MEMORY,
        "PYTHONUNBUFFERED": "1",
        "TF_CPP_MIN_LOG_LEVEL": "1",
    }
    if device == "gpu":
        if own:
            variables["CUDA_VISIBLE_DEVICES"] = ",".join(own)
        # Else the first process takes nearly all memory of each visible GPU.
        variables["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
        # NVML's order; it reads GPUs that Ray assigns by number.
        variables["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
    else:
        variables["CUDA_VISIBLE_DEVICES"] = "-1"
    if device == "tpu" and own:
        variables["TPU_VISIBLE_CHIPS"] = ",".join(own)
        if len(own) in _BOUNDS:
            variables["TPU_CHIPS_PER_HOST_BOUNDS"] = _BOUNDS[len(own)]
            variables["TPU_HOST_BOUNDS"] = "1,1,1"
    return variables
