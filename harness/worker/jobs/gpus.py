"""Jobs that check that a case's workers use exactly their assigned GPUs."""

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from harness.errors import NO_DEVICE, CaseError, first_line
from harness.worker.process.job import Job, JobState
from harness.worker.process.resource_errors import refused_memory
from harness.worker.process.tensorflow_gpus import make_devices, make_logical_devices, tensorflow_gpus


def start_on_gpus(
    state: JobState,
    task: int,
    addresses: Sequence[str],
    n_devices: int,
    *,
    server: Job[int, Sequence[str], int, None],
    n_gpus: Sequence[int],
    shared_mib: Sequence[Sequence[Sequence[int]]] = (),
) -> None:
    """Start a server in a process in which TensorFlow sees exactly the GPUs of its worker.

    Replicas that share GPUs get a logical device each.

    Args:
        server: job that starts it.
        n_gpus: number of GPUs by task.
        shared_mib: memory of each logical device by task and GPU; empty if each GPU is one device.
    Raises:
        CaseError: see `require_gpus`.
    """
    require_gpus(state, task, n_gpus[task])
    if shared_mib:
        make_logical_devices(shared_mib[task])
    with _making_devices(task):
        server(state, task, addresses, n_devices)


def require_usable_gpus(state: JobState, task: int, n_own: int) -> None:
    """Require that TensorFlow can make devices of exactly the GPUs of this process's worker.

    Raises:
        CaseError: see `require_gpus`; or with TensorFlow's reason.
    """
    require_gpus(state, task, n_own)
    with _making_devices(task):
        make_devices()


def require_gpus(state: JobState, task: int, n_own: int) -> None:
    """Require that TensorFlow sees exactly the GPUs of this process's worker.

    Raises:
        CaseError: `no-device`, with the libraries that TensorFlow cannot open.
    """
    del state
    import tensorflow as tf

    n_seen = len(tf.config.list_physical_devices("GPU"))
    if n_seen != n_own:
        if n_seen < n_own:
            problem, way_out = tensorflow_gpus().why_fewer
        else:
            problem = f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES', '')}"
            way_out = "give the worker as many as it has replicas"
        raise CaseError(
            NO_DEVICE,
            f"worker {task}: TensorFlow sees {n_seen} GPUs where the worker has {n_own}: {problem}; "
            f"{way_out} (`stratbench doctor` shows more)",
            stage="provision",
            field="cluster.device",
        )


def require_devices(task: int, names: Iterable[str], n_own: int) -> None:
    """Require that TensorFlow made a device of each GPU of this worker.

    Args:
        names: names of all devices of the worker's steps.
        n_own: number of GPUs, or of logical devices of shared ones.
    Raises:
        CaseError: `no-device`.
    """
    import tensorflow as tf

    gpus = [spec for spec in map(tf.DeviceSpec.from_string, names) if spec.device_type == "GPU"]
    n_made = sum(gpu.job in (None, "localhost") or gpu.task == task for gpu in gpus)
    if n_made < n_own:
        raise CaseError(
            NO_DEVICE,
            f"worker {task}: TensorFlow made devices of {n_made} of {n_own} GPUs; see "
            "its log and `stratbench doctor`",
            stage="provision",
            field="cluster.device",
        )


@contextmanager
def _making_devices(task: int) -> Iterator[None]:
    """Report in one line that a GPU cannot be used, unless memory is the reason."""
    import tensorflow as tf

    try:
        yield
    except tf.errors.InternalError as error:
        if refused_memory(error) is not None:
            raise
        raise CaseError(
            NO_DEVICE,
            f"worker {task}: TensorFlow cannot use a GPU that it sees: {first_line(error.message)}; check "
            "that NVIDIA's driver works and is new enough (`stratbench doctor` shows more)",
            stage="provision",
            field="cluster.device",
        ) from error
