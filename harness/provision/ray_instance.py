"""A Ray instance of the run's own: its token, its settings, its chatter off the terminal, and its end."""

import logging
import os
import secrets
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

from harness.provision.failures import ProvisionError
from harness.provision.reaper import RUN_FOLDER_VARIABLE, start_time

_OBJECT_STORE_BYTES = 256 * 2**20
_SERVER_NAMES = ("raylet", "gcs_server")


@contextmanager
def own_ray(folder: Path, *, n_actors: int, log_path: Path) -> Iterator[Callable[[], bool]]:
    """Start Ray for this process alone and connect to it; nothing of it is left when the context ends.

    Args:
        folder: private folder of the run, for its token and its files.
        log_path: where what it would print goes.
    Yields:
        Whether its servers still run.
    Raises:
        ProvisionError: it does not start.
    """
    with ExitStack() as stack:
        stack.enter_context(_environment(_variables(folder, _write_token(folder))))

        import ray

        stack.enter_context(_chatter_in(log_path))
        on_terminate = signal.getsignal(signal.SIGTERM)
        stack.callback(ray.shutdown)
        try:
            ray.init(
                address="local",
                num_cpus=n_actors,
                include_dashboard=False,
                object_store_memory=_OBJECT_STORE_BYTES,
                log_to_driver=False,
                # One further down, since Ray opens the folder it is given to everybody.
                _temp_dir=str(folder / "r"),
            )
        except Exception as error:
            raise ProvisionError(
                f"local: Ray must start on this machine, got {type(error).__name__}: {_first_line(error)}; "
                "check free memory, /dev/shm and the temporary directory"
            ) from error
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, on_terminate)  # Ray installs a handler of its own
        servers = _children(_SERVER_NAMES)
        yield lambda: all(start_time(pid) == started for pid, started in servers.items())


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


def _variables(folder: Path, token: Path) -> dict[str, str | None]:
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


@contextmanager
def _chatter_in(log_path: Path) -> Iterator[None]:
    from ray._private import worker as ray_worker

    logger = logging.getLogger("ray")
    handlers, propagate = list(logger.handlers), logger.propagate
    handler = logging.FileHandler(log_path, delay=True)
    logger.handlers[:], logger.propagate = [handler], False

    def keep(data: Mapping[str, list[str]], ignore_prefix: bool) -> None:  # noqa: ARG001, FBT001
        logger.warning("%s", "\n".join(data["lines"]))

    # Ray prints its servers' errors on standard output, where they would break --json, and has no setting
    # against it: so the function that prints them is replaced, with Ray's own signature.
    printer, ray_worker.print_to_stdstream = ray_worker.print_to_stdstream, keep
    try:
        yield
    finally:
        ray_worker.print_to_stdstream = printer
        logger.handlers[:], logger.propagate = handlers, propagate
        handler.close()


def _children(names: tuple[str, ...]) -> dict[int, int | None]:
    """Find the children of this process that run one of some programs: process id → start time."""
    found: dict[int, int | None] = {}
    for entry in Path("/proc").iterdir():
        try:
            program = (entry / "cmdline").read_bytes().split(b"\0")[0].decode(errors="replace")
            parent = (entry / "stat").read_text().rpartition(")")[2].split()[1]
        except (OSError, IndexError):
            continue  # not a process, or one that ended meanwhile
        if Path(program).name in names and parent == str(os.getpid()):
            found[int(entry.name)] = start_time(int(entry.name))
    return found


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), "")[:200]
