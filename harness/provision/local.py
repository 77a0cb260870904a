"""The `local` provider: a Ray instance of the run's own on this machine, one actor for each worker."""

import logging
import os
import secrets
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from harness.provision.base import ClusterShape
from harness.provision.failures import ProvisionError
from harness.provision.reaper import RUN_FOLDER_VARIABLE, reap, run_folder

if TYPE_CHECKING:
    from harness.provision.ray_cluster import RayCluster

_OBJECT_STORE_BYTES = 256 * 2**20
_IMPORTS = ("tensorflow", "keras", "harness.worker.tcp_counters")


class LocalProvider:
    """Workers on this machine without containers.

    Args:
        imports: what each worker's zygote imports before it forks.
        preload_s: how long those imports may take.
    """

    name = "local"

    def __init__(self, *, imports: Sequence[str] = _IMPORTS, preload_s: float = 120.0) -> None:
        self._imports = tuple(imports)
        self._preload_s = preload_s

    @contextmanager
    def start(self, shape: ClusterShape, run_id: str, log_dir: Path) -> Iterator["RayCluster"]:
        """Bring up workers; nothing of them is left when the context ends. See `Provider.start`.

        It returns when the actors have been asked for; they import while the caller goes on.
        """
        started_s = time.monotonic()
        log_dir.mkdir(parents=True, exist_ok=True)
        reap()
        with ExitStack() as stack:
            folder = stack.enter_context(run_folder())
            stack.enter_context(_environment(_ray_variables(folder, _write_token(folder))))
            _start_ray(stack, folder, shape.workers, log_dir / f"ray-{run_id}.log")

            from harness.provision.ray_cluster import ActorOptions, RayCluster

            cores = core_sets(sorted(os.sched_getaffinity(0)), shape.workers, shape.cores_per_worker)
            options = [
                ActorOptions(
                    resources={"num_cpus": 1},
                    arguments={
                        "imports": self._imports,
                        "cores": cores[worker],
                        "log_path": str((log_dir / f"zygote-{worker}.log").absolute()),
                        "environment": _zygote_variables(folder, shape),
                        "preload_s": self._preload_s,
                    },
                )
                for worker in range(shape.workers)
            ]
            cluster = RayCluster(
                options,
                pinned=cores[0] is not None,
                notes=_notes(shape, pinned=cores[0] is not None),
                started_s=started_s,
                preload_s=self._preload_s,
            )
            stack.callback(cluster.stop)
            yield cluster


def core_sets(available: Sequence[int], workers: int, cores_per_worker: int) -> list[tuple[int, ...] | None]:
    """Share cores out: disjoint sets of equal size, or None for every worker when there are too few."""
    if workers * cores_per_worker > len(available):
        return [None] * workers
    return [
        tuple(available[worker * cores_per_worker : (worker + 1) * cores_per_worker])
        for worker in range(workers)
    ]


def _notes(shape: ClusterShape, *, pinned: bool) -> list[str]:
    notes: list[str] = []
    if not pinned:
        n_available = len(os.sched_getaffinity(0))
        n_wanted = shape.workers * shape.cores_per_worker
        notes.append(f"workers share cores: {n_wanted} asked for, {n_available} available")
    if shape.memory_bytes is not None:
        notes.append("memory_per_worker is not enforced by the local provider")
    return notes


def _write_token(folder: Path) -> Path:
    path = folder / "token"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
    with os.fdopen(descriptor, "w") as file:
        file.write(_token())
    return path


@cache
def _token() -> str:
    # One for each driver process: Ray's native half reads it once and would refuse a second instance's.
    return secrets.token_hex(32)


def _ray_variables(folder: Path, token: Path) -> dict[str, str | None]:
    return {
        RUN_FOLDER_VARIABLE: str(folder),
        "RAY_ADDRESS": None,  # another cluster's
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_DISABLE_IMPORT_WARNING": "1",
        "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
        "RAY_memory_monitor_refresh_ms": "0",  # it would kill workers for memory that other programs use
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    }


def _zygote_variables(folder: Path, shape: ClusterShape) -> dict[str, str]:
    variables = {
        RUN_FOLDER_VARIABLE: str(folder),
        "KERAS_HOME": str(folder / "keras"),  # Keras writes a file into the home directory otherwise
        "KERAS_BACKEND": "tensorflow",
        "OPENBLAS_NUM_THREADS": "1",  # a process with threads cannot be forked safely
        "PYTHONUNBUFFERED": "1",
        "TF_CPP_MIN_LOG_LEVEL": "1",
    }
    if shape.device == "cpu":
        variables["CUDA_VISIBLE_DEVICES"] = "-1"
    return variables


@contextmanager
def _environment(variables: Mapping[str, str | None]) -> Iterator[None]:
    # Ray's native half reads its settings from the environment, and passes it on to what it starts.
    before = {name: os.environ.get(name) for name in variables}
    _set_environment(variables)
    try:
        yield
    finally:
        _set_environment(before)


def _set_environment(variables: Mapping[str, str | None]) -> None:
    for name, value in variables.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def _start_ray(stack: ExitStack, folder: Path, n_actors: int, log_path: Path) -> None:
    logger = logging.getLogger("ray")
    handler = logging.FileHandler(log_path, delay=True)
    stack.callback(_restore_logger, logger, handler, list(logger.handlers), propagate=logger.propagate)
    logger.handlers[:] = [handler]
    logger.propagate = False

    import ray

    on_terminate = signal.getsignal(signal.SIGTERM)
    stack.callback(ray.shutdown)
    # One further down, since Ray opens the folder it is given to everybody.
    ray_folder = folder / "r"
    try:
        ray.init(
            address="local",
            num_cpus=n_actors,
            num_gpus=None,
            include_dashboard=False,
            object_store_memory=_OBJECT_STORE_BYTES,
            log_to_driver=False,
            configure_logging=False,
            _temp_dir=str(ray_folder),
        )
    except Exception as error:
        raise ProvisionError(
            f"local: Ray must start on this machine, got {type(error).__name__}: {_first_line(error)}; "
            "check free memory, /dev/shm and the temporary directory"
        ) from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, on_terminate)  # Ray installs a handler of its own


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")[:200]


def _restore_logger(
    logger: logging.Logger, handler: logging.Handler, handlers: list[logging.Handler], *, propagate: bool
) -> None:
    logger.handlers[:] = handlers
    logger.propagate = propagate
    handler.close()
