"""Accelerators of this host: detection, missing parts, and assignment to workers.

`host_devices` detects them; everything else works on its result.
"""

import os
import re
import subprocess
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from harness.cluster import ClusterShape, Hardware
from harness.provision.failures import ProvisionError

_NVIDIA_TRACES = ("dev/nvidiactl", "proc/driver/nvidia/version", "dev/dxg")
_LIST_GPUS = ("--query-gpu=uuid,name,driver_version,memory.total", "--format=csv,noheader,nounits")
_LIST_S = 30.0
_DISTRIBUTIONS = ("tensorflow", "tensorflow-cpu", "tensorflow-tpu")
# The rest is for CUDA itself: each process that uses a GPU needs some.
_SHARED_MEMORY = 0.9
_GOOGLE = "0x1ae0"  # of PCI vendors
_NAME_UUIDS = "name UUIDs of whole GPUs there, as `nvidia-smi -L` lists them"


@dataclass(frozen=True, kw_only=True, slots=True)
class Gpu:
    """A GPU: its UUID, model, and memory if the driver reports it."""

    uuid: str
    name: str
    memory_mib: int | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class HostDevices:
    """Accelerators of a host.

    Attributes:
        gpus: GPUs that this process may use. n_hidden: number of others, hidden by CUDA_VISIBLE_DEVICES.
        no_gpus: reason why there are none, and what to do.
        driver: version of NVIDIA's driver; None if unknown.
        tpus: device nodes, one for each chip, in libtpu's order of chips.
    """

    gpus: tuple[Gpu, ...] = ()
    n_hidden: int = 0
    no_gpus: tuple[str, str] = ("a host without NVIDIA's driver (no /dev/nvidiactl)", "install it")
    driver: str | None = None
    tpus: tuple[str, ...] = ()


def host_devices(
    root: Path = Path("/"),
    *,
    nvidia_smi: str = "nvidia-smi",
    mask: str | None = None,
    order: str | None = None,
) -> HostDevices:
    """Find the accelerators of this host.

    Args:
        root: root of its file system.
        nvidia_smi: NVIDIA's program that lists GPUs.
        mask, order: values of CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER; None for those of the environment.
    """
    tpus = tuple(_tpu_nodes(root))
    if not any((root / trace).exists() for trace in _NVIDIA_TRACES):
        return HostDevices(tpus=tpus)
    listing, trouble = _listing(nvidia_smi)
    if trouble is not None:
        return HostDevices(no_gpus=(trouble, "mend the driver's installation"), tpus=tpus)
    lines = [line for line in listing.splitlines() if line.startswith("GPU-")]
    rows = [list(map(str.strip, line.split(","))) for line in lines]
    gpus = [Gpu(uuid=row[0], name=row[1], memory_mib=_number(row[3:])) for row in rows if len(row) > 1]
    driver = next((row[2] for row in rows if len(row) > 2), None)
    mask = os.environ.get("CUDA_VISIBLE_DEVICES") if mask is None else mask
    order = os.environ.get("CUDA_DEVICE_ORDER") if order is None else order
    unclear = _unclear(gpus, mask, order)
    if unclear is not None:
        no_gpus = (f"CUDA_VISIBLE_DEVICES={mask}, {unclear}", _NAME_UUIDS)
        return HostDevices(no_gpus=no_gpus, tpus=tpus)
    visible = _unmasked(gpus, mask)
    if visible:
        return HostDevices(gpus=visible, n_hidden=len(gpus) - len(visible), driver=driver, tpus=tpus)
    no_gpus = ("a driver that shows none", "start this container or machine with GPUs")
    if gpus:
        no_gpus = (f"{len(gpus)} that CUDA_VISIBLE_DEVICES hides", "unset it")
    return HostDevices(no_gpus=no_gpus, n_hidden=len(gpus), driver=driver, tpus=tpus)


def _listing(nvidia_smi: str) -> tuple[str, str | None]:
    """List GPUs with the driver's own program; the second value is the reason of a failure."""
    try:
        listed = subprocess.run(
            [nvidia_smi, *_LIST_GPUS],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LIST_S,
            check=False,
        )
    except FileNotFoundError:
        return "", "no program nvidia-smi"
    except (OSError, subprocess.TimeoutExpired) as error:
        return "", f"no answer from nvidia-smi ({type(error).__name__})"
    if listed.returncode:
        message = " ".join((listed.stderr or listed.stdout).split())[:200]
        return "", f"from nvidia-smi: {message or 'an error'}"
    return listed.stdout, None


def lack(devices: HostDevices, device: Hardware) -> ProvisionError | None:
    """Return the error of a host that has no device of a kind, else None."""
    match device:
        case "gpu":
            return _lack_of_gpus(devices)
        case "tpu" if not devices.tpus:
            return ProvisionError(
                "device tpu needs TPU chips, got a host with neither /dev/accel* nor a TPU in /dev/vfio",
                way_out="run on a Cloud TPU VM (docs/tpu.md), or set cluster.device=tpu-emulated",
                field="cluster.device",
            )
    return None


def lack_of_tensorflow(device: Hardware) -> ProvisionError | None:
    """Return the error of a TensorFlow that does not support a kind of device, else None."""
    wanted, way_out = {
        "cpu": (None, ""),
        "gpu": ("tensorflow", "run `make setup DEVICE=gpu` with a fresh .venv"),
        "tpu": ("tensorflow-tpu", "use the image of `make image TARGET=tpu-head` on a TPU VM"),
    }[device]
    others = [name for name in _DISTRIBUTIONS if name != wanted and _is_installed(name)]
    if wanted is None or (_is_installed(wanted) and not others):
        return None
    return ProvisionError(
        f"device {device} needs the distribution {wanted} in this environment, got "
        f"{' and '.join(others) or 'none'}",
        way_out=f"{way_out}, or set cluster.device=cpu",
        field="cluster.device",
    )


def devices_of_workers(shape: ClusterShape) -> tuple[tuple[str, ...], ...]:
    """Devices of this host for each worker, none for CPUs; see `shared_out`."""
    return ((),) * shape.workers if shape.hardware == "cpu" else shared_out(host_devices(), shape)


def shared_out(devices: HostDevices, shape: ClusterShape) -> tuple[tuple[str, ...], ...]:
    """Give each worker as many devices as it has replicas; GPUs are shared if the shape allows it.

    Returns:
        UUIDs of GPUs, or libtpu's indices of TPU chips, by worker.
    Raises:
        ProvisionError: the host lacks them, or has too few.
    """
    lacking = lack(devices, shape.hardware)
    if lacking is not None:
        raise lacking
    names = [gpu.uuid for gpu in devices.gpus] if shape.hardware == "gpu" else _indices(devices.tpus)
    if shape.n_replicas > len(names):
        if not shape.share_gpus:
            raise _too_few(devices, shape, len(names))
        silent = [gpu.name for gpu in devices.gpus if gpu.memory_mib is None]
        if silent:
            raise ProvisionError(
                f"nvidia-smi reports no memory size of {silent[0]}, which replicas would share",
                way_out="lower cluster.workers or cluster.replicas_per_worker to the GPUs there are",
                field="cluster.share_gpus",
            )
    by_worker = _device_of_each_replica(shape, len(names))
    return tuple(tuple(names[number] for number in dict.fromkeys(own)) for own in by_worker)


def gpus_per_worker(shape: ClusterShape) -> int:
    """GPUs that each worker sees; several of its replicas may be on one."""
    n_replicas = shape.replicas_per_worker
    return min(n_replicas, len(_gpus_here())) if shape.share_gpus else n_replicas


def replicas_on_gpus(shape: ClusterShape) -> tuple[int, ...]:
    """Number of replicas on each GPU of this host if some share one; else empty.

    A host without GPUs, which plans for other hosts, counts as one with a single GPU.
    """
    n_gpus = max(1, len(_gpus_here())) if shape.share_gpus else shape.n_replicas
    if shape.n_replicas <= n_gpus:
        return ()
    numbers = [number for own in _device_of_each_replica(shape, n_gpus) for number in own]
    return tuple(Counter(sorted(numbers)).values())


def shared_memory_mib(shape: ClusterShape, first: int = 0) -> tuple[tuple[tuple[int, ...], ...], ...]:
    """Memory in MiB of each replica that shares GPUs, by worker and GPU; empty if none does.

    Args:
        first: number of the case's first worker on this host.
    """
    if not replicas_on_gpus(shape):
        return ()
    gpus = _gpus_here()
    by_worker = _device_of_each_replica(shape, len(gpus), first)
    n_on = Counter(number for own in by_worker for number in own)
    limits = {k: int((gpus[k].memory_mib or 0) * _SHARED_MEMORY) // n for k, n in n_on.items()}
    return tuple(
        tuple((limits[number],) * n_own for number, n_own in Counter(own).items()) for own in by_worker
    )


@cache
def _gpus_here() -> tuple[Gpu, ...]:
    return host_devices().gpus


def _device_of_each_replica(shape: ClusterShape, n_devices: int, first: int = 0) -> list[list[int]]:
    n_replicas = shape.replicas_per_worker
    workers = range(first, first + shape.workers)
    return [[(worker * n_replicas + k) % n_devices for k in range(n_replicas)] for worker in workers]


def _too_few(devices: HostDevices, shape: ClusterShape, n_held: int) -> ProvisionError:
    workers, per_worker, kind = shape.workers, shape.replicas_per_worker, shape.hardware.upper()
    hidden = f", and {devices.n_hidden} that CUDA_VISIBLE_DEVICES hides" if devices.n_hidden else ""
    way_out = "lower it"
    if per_worker <= n_held and per_worker > 1:
        way_out += ", or cluster.replicas_per_worker"
    if shape.hardware == "gpu":
        way_out += ", or share GPUs to try a plan: --set cluster.share_gpus=true, or verify --share-gpus"
    return ProvisionError(
        f"{_counted(workers, 'worker')} of {_counted(per_worker, 'replica')} need{'s' * (workers == 1)} "
        f"{workers * per_worker} {kind}s, got {n_held} on this host{hidden}",
        way_out=way_out,
        field="cluster.replicas_per_worker" if per_worker > n_held else "cluster.workers",
    )


def _counted(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


def _number(cells: Sequence[str]) -> int | None:
    """First cell as a number; None if it is not one, as for a GPU that shares the host's memory."""
    return int(cells[0]) if cells and cells[0].isdecimal() else None


def _is_installed(distribution: str) -> bool:
    try:
        metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return False
    return True


def _lack_of_gpus(devices: HostDevices) -> ProvisionError | None:
    if devices.gpus:
        return None
    what, way_out = devices.no_gpus
    return ProvisionError(
        f"device gpu needs GPUs, got {what}",
        way_out=f"{way_out}, or set cluster.device=cpu",
        field="cluster.device",
    )


def _unmasked(gpus: Sequence[Gpu], mask: str | None) -> tuple[Gpu, ...]:
    """GPUs listed in CUDA_VISIBLE_DEVICES, up to the first invalid name, as in CUDA."""
    if mask is None:
        return tuple(gpus)
    visible: list[Gpu] = []
    for name in (entry.strip() for entry in mask.split(",")):
        if name.isdecimal():
            named = [gpu for k, gpu in enumerate(gpus) if str(k) == name]
        else:
            named = [gpu for gpu in gpus if name and gpu.uuid.startswith(name)]
        if len(named) != 1 or named[0] in visible:
            break
        visible += named
    return tuple(visible)


def _unclear(gpus: Sequence[Gpu], mask: str | None, order: str | None) -> str | None:
    names = [] if mask is None else [name.strip() for name in mask.split(",")]
    if any(name.startswith("MIG-") for name in names):
        return "which names parts of GPUs (MIG), of which workers get none"
    # CUDA's default order is fastest first, nvidia-smi's is by bus.
    alike = order == "PCI_BUS_ID" or len({gpu.name for gpu in gpus}) <= 1
    if not alike and any(name.isdecimal() for name in names):
        return "which counts GPUs of several models in an order of CUDA's own"
    return None


def _indices(tpus: Sequence[str]) -> list[str]:
    """Number chips by position: their nodes' numbers may be those of IOMMU groups."""
    return [str(index) for index in range(len(tpus))]


def _tpu_nodes(root: Path) -> list[str]:
    """Device nodes of TPU chips: `accel`, or the groups of vfio."""
    nodes = [path for path in (root / "dev").glob("accel[0-9]*") if not path.is_dir()]
    if not nodes:
        nodes = [path for path in (root / "dev/vfio").glob("[0-9]*") if _is_tpu(root, path.name)]
    nodes.sort(key=lambda path: int(re.sub(r"\D", "", path.name)))
    return [f"/{path.relative_to(root)}" for path in nodes]


def _is_tpu(root: Path, group: str) -> bool:
    vendors = (root / "sys/kernel/iommu_groups" / group / "devices").glob("*/vendor")
    return any(vendor.read_text().strip() == _GOOGLE for vendor in vendors)
