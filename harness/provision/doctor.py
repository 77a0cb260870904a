"""Checks of this machine: software, resources, and instructions for missing ones."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from harness.errors import INSTALL
from harness.host_facts import n_usable_cores
from harness.provision.accelerators import HostDevices, host_devices, lack, lack_of_tensorflow
from harness.provision.failures import ProvisionError
from harness.provision.network_namespace import WAY_OUT, refusal
from harness.worker.counters.network import inet_diag_problem
from harness.worker.process.os_process import available_memory_bytes
from harness.worker.process.tensorflow_gpus import library_path, tensorflow_gpus

_TENSORFLOWS = ("tensorflow-cpu", "tensorflow", "tensorflow-tpu")
_MIN_PYTHON = (3, 11)
_MIN_CORES = 2
_MIN_MEMORY_BYTES = 4 * 2**30
_MIN_DISK_BYTES = 2 * 2**30
_MIN_SHM_BYTES = 64 * 2**20
_GIB = 2**30


@dataclass(frozen=True, kw_only=True, slots=True)
class Check:
    """One fact about this machine.

    Args:
        detail: result, in one line.
        way_out: instruction for the user; empty if ok.
        required: True if runs are impossible without it.
    """

    name: str
    ok: bool
    detail: str
    way_out: str = ""
    required: bool = True


def checks(folder: Path = Path()) -> Sequence[Check]:
    """Check everything that a run on this machine needs.

    Args:
        folder: parent of new run folders.
    """
    return (
        _python(),
        _distribution("tensorflow", _TENSORFLOWS),
        _distribution("ray", ("ray",)),
        _cores(),
        _memory(),
        _shared_memory(Path("/dev/shm")),  # noqa: S108 - asked about, not written to
        _disk(folder),
        _namespaces(),
        _inet_diag(),
        _docker(),
        *_accelerators(host_devices()),
    )


def _check(name: str, detail: str, way_out: str, *, ok: bool, required: bool = False) -> Check:
    return Check(name=name, ok=ok, detail=detail, way_out="" if ok else way_out, required=required)


def _python() -> Check:
    wanted = ".".join(map(str, _MIN_PYTHON))
    way_out = f"install Python {wanted} or newer and run `make setup PYTHON=python{wanted}`"
    ok = sys.version_info[:2] >= _MIN_PYTHON
    return _check("python", ".".join(map(str, sys.version_info[:3])), way_out, ok=ok, required=True)


def _distribution(name: str, candidates: Sequence[str]) -> Check:
    # Only the metadata: importing TensorFlow takes seconds and starts threads.
    for candidate in candidates:
        try:
            return Check(name=name, ok=True, detail=f"{candidate} {metadata.version(candidate)}")
        except metadata.PackageNotFoundError:
            continue
    return Check(name=name, ok=False, detail="not installed", way_out=INSTALL)


def _cores() -> Check:
    n_cores = n_usable_cores()
    way_out = f"allow {_MIN_CORES} cores; with fewer, workers share one and timings mean little"
    return _check("cores", f"{n_cores} usable", way_out, ok=n_cores >= _MIN_CORES)


def _memory() -> Check:
    n_bytes = available_memory_bytes()
    detail = "unknown" if n_bytes is None else f"{n_bytes / _GIB:.1f} GiB available"
    way_out = f"free memory up to {_MIN_MEMORY_BYTES / _GIB:.0f} GiB, or lower cluster.workers"
    return _check("memory", detail, way_out, ok=n_bytes is None or n_bytes >= _MIN_MEMORY_BYTES)


def _shared_memory(path: Path) -> Check:
    name = "shared-memory"
    if not path.is_dir():
        return _check(name, f"no {path}", "mount it: Ray keeps its object store there", ok=False)
    n_bytes = shutil.disk_usage(path).free
    way_out = "give the container more (docker: --shm-size=1g); Ray falls back to slow files in /tmp"
    return _check(name, f"{n_bytes / 2**20:.0f} MiB free in {path}", way_out, ok=n_bytes >= _MIN_SHM_BYTES)


def _disk(folder: Path) -> Check:
    try:
        n_bytes = shutil.disk_usage(folder.resolve()).free
    except OSError as error:
        detail = f"the current folder: {error.strerror}"
        return _check("disk", detail, "go to another folder", ok=False, required=True)
    way_out = "free some, or put runs elsewhere with --out"
    ok = n_bytes >= _MIN_DISK_BYTES
    return _check("disk", f"{n_bytes / _GIB:.1f} GiB free here", way_out, ok=ok, required=True)


def _namespaces() -> Check:
    reason = refusal()
    way_out = f"{WAY_OUT}; without, TensorFlow's unauthenticated servers listen on this host's own addresses"
    return _check("network-namespaces", reason or "can be made", way_out, ok=reason is None)


def _inet_diag() -> Check:
    problem = inet_diag_problem()
    way_out = "load the kernel modules tcp_diag and inet_diag; else TCP bytes are null"
    return _check("inet-diag", problem or "answers", way_out, ok=problem is None)


def _docker() -> Check:
    # Connecting to the engine imports requests and its whole client.
    from harness.provision.docker.engine import IMAGE, engine, worker_image

    try:
        with engine() as client:
            engine_version = client.version()["Version"]
            worker_image(client, None)
    except ProvisionError as error:
        return _lacking("docker", error)
    return Check(name="docker", ok=True, detail=f"engine {engine_version}, {IMAGE} is of this code")


def _accelerators(devices: HostDevices) -> Sequence[Check]:
    gpus, tpus = lack(devices, "gpu"), lack(devices, "tpu")
    detail = _counted(gpu.name for gpu in devices.gpus)
    rows = [
        Check(name="gpu", ok=True, detail=detail) if gpus is None else _lacking("gpu", gpus),
        Check(name="tpu", ok=True, detail=", ".join(devices.tpus)) if tpus is None else _lacking("tpu", tpus),
        _tpu_strategies(devices),
    ]
    if devices.gpus:
        rows += [_gpus_of_tensorflow(devices), _gpus_in_containers(devices)]
    return rows


def _gpus_of_tensorflow(devices: HostDevices) -> Check:
    name = "gpu-local"
    lacking = lack_of_tensorflow("gpu")
    if lacking is not None:
        return _lacking(name, lacking)
    own = [gpu.uuid for gpu in devices.gpus]
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": ",".join(own)}
    seen = tensorflow_gpus(environment | library_path(environment))
    if Counter(seen.names) == Counter(gpu.name for gpu in devices.gpus):
        versions = f"driver {devices.driver or 'unknown'}, CUDA {seen.cuda}, cuDNN {seen.cudnn}"
        detail = f"TensorFlow sees {_counted(seen.names)} ({', '.join(own)}); {versions}"
        return Check(name=name, ok=True, detail=detail)
    problem, way_out = seen.why_fewer
    return Check(
        name=name,
        ok=False,
        detail=f"TensorFlow sees {_counted(seen.names)}, and nvidia-smi shows "
        f"{_counted(gpu.name for gpu in devices.gpus)} (driver {devices.driver or 'unknown'}): {problem}",
        way_out=f"{way_out}, or hide the GPUs with CUDA_VISIBLE_DEVICES=-1",
    )


def _counted(names: Iterable[str]) -> str:
    return ", ".join(f"{count} x {name}" for name, count in Counter(names).items()) or "none"


def _tpu_strategies(devices: HostDevices) -> Check:
    name = "tpu-strategies"
    if not _distribution("tensorflow", _TENSORFLOWS).ok:
        return Check(name=name, ok=False, detail="none: no TensorFlow", way_out=INSTALL, required=False)
    lacking = lack(devices, "tpu") or lack_of_tensorflow("tpu")
    if lacking is not None:
        detail = (
            "emulated: tpu-replicate by cluster.device=tpu-emulated, on cores of this host, since "
            f"{lacking.problem}"
        )
        return Check(name=name, ok=True, detail=detail, required=False)
    detail = (
        f"real: tf-tpu and tpu-replicate by cluster.device=tpu, on {len(devices.tpus)} chips of this host; "
        "the latter as replicas that compile its graph under TensorFlow's TPUStrategy"
    )
    return Check(name=name, ok=True, detail=detail, required=False)


def _gpus_in_containers(devices: HostDevices) -> Check:
    from harness.provision.docker.engine import engine, lack_of_toolkit, toolkit_of, worker_image

    try:
        with engine() as client:
            lacking = lack_of_toolkit(toolkit_of(client.info()), [gpu.uuid for gpu in devices.gpus])
            if lacking is not None:
                raise lacking
            worker_image(client, None, "gpu")
    except ProvisionError as error:
        return _lacking("gpu-docker", error)
    return Check(
        name="gpu-docker", ok=True, detail="the engine hands out GPUs, and the image is of this code"
    )


def _lacking(name: str, error: ProvisionError) -> Check:
    return Check(
        name=name,
        ok=False,
        detail=error.problem.removeprefix("docker: "),
        way_out=error.way_out,
        required=False,
    )
