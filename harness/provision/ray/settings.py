"""Settings of every connection to Ray: a private token, and no output on the terminal."""

import logging
import os
import secrets
import threading
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TextIO

from harness.records.contained_files import require_regular
from harness.worker.process.os_process import RUN_FOLDER_VARIABLE

NODE_VARIABLES = {
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
    "RAY_memory_monitor_refresh_ms": "0",  # it would kill workers because of other programs' memory
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_DEFAULT_PYTHON_VERSION_MATCH_LEVEL": "minor",
    "RAY_worker_niceness": "0",  # measured processes keep the normal priority; Ray's own niceness is 15
    "RAY_CLIENT_RECONNECT_GRACE_PERIOD": "2",  # seconds that a client blocks after its head has died
    # Ray Client's server forks a process for each client while gRPC may be active. With gRPC's fork handlers,
    # three of eight such processes died at once; without, none of eight did.
    "GRPC_ENABLE_FORK_SUPPORT": "0",
}
"""Settings of Ray's nodes and clients."""


def write_token(folder: Path) -> Path:
    """Write the token of this process's clusters into a folder, for its user alone."""
    path = folder / "token"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400)
    with os.fdopen(descriptor, "w") as file:
        file.write(_token())
    return path


@cache
def _token() -> str:
    # One for each driver process: Ray's C++ core reads it once, and would reject a second instance's.
    return secrets.token_hex(32)


@contextmanager
def ray_environment(
    folder: Path, token: Path | None, settings: Mapping[str, str] = MappingProxyType({})
) -> Iterator[None]:
    """Set environment variables for Ray's C++ core, in this process and its children.

    Args:
        folder: folder of the run. token: file with the cluster's token; None for a cluster without one.
        settings: variables besides the common ones.
    """
    variables: dict[str, str | None] = {
        **NODE_VARIABLES,
        **settings,
        RUN_FOLDER_VARIABLE: str(folder),
        "RAY_ADDRESS": None,  # of another cluster
        "RAY_AUTH_MODE": "disabled" if token is None else "token",
        "RAY_AUTH_TOKEN_PATH": None if token is None else str(token),
    }
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
def chatter_in(log_path: Path) -> Iterator[None]:
    """Redirect Ray's output, its warnings and its threads' exceptions to a log."""
    import ray
    from ray._private import worker as ray_worker

    # The second logger, for output of a client's cluster, does not propagate, and prints without a handler.
    loggers = [logging.getLogger(name) for name in ("ray", "ray.util.client.logsclient")]
    before = [(list(logger.handlers), logger.propagate) for logger in loggers]
    require_regular(log_path)
    handler = logging.FileHandler(log_path, delay=True)
    for logger in loggers:
        logger.handlers[:], logger.propagate = [handler], False

    def keep(data: Mapping[str, list[str]], ignore_prefix: bool) -> None:  # noqa: ARG001, FBT001
        loggers[0].warning("%s", "\n".join(data["lines"]))

    # Ray prints its servers' errors on standard output, which would break --json, and has no setting for it.
    # So the printing function is replaced, with Ray's own signature.
    printer, ray_worker.print_to_stdstream = ray_worker.print_to_stdstream, keep
    try:
        with _hooks_of_python(loggers[0], Path(ray.__file__).parent):
            yield
    finally:
        ray_worker.print_to_stdstream = printer
        for logger, (handlers, propagate) in zip(loggers, before, strict=True):
            logger.handlers[:], logger.propagate = handlers, propagate
        handler.close()


@contextmanager
def _hooks_of_python(logger: logging.Logger, package: Path) -> Iterator[None]:
    """Log a package's warnings, and exceptions that end its threads, in place of printing them."""
    show_warning, end_thread = warnings.showwarning, threading.excepthook

    def show(
        message: Warning | str,
        category: type[Warning],
        filename: str,
        lineno: int,
        file: TextIO | None = None,
        line: str | None = None,
    ) -> None:
        if Path(filename).is_relative_to(package):
            logger.warning("%s", warnings.formatwarning(message, category, filename, lineno, line))
        else:
            show_warning(message, category, filename, lineno, file, line)

    def end(ended: threading.ExceptHookArgs) -> None:
        frames = traceback.extract_tb(ended.exc_traceback)
        if any(Path(frame.filename).is_relative_to(package) for frame in frames):
            text = traceback.format_exception(ended.exc_type, ended.exc_value, ended.exc_traceback)
            logger.warning("%s", "".join(text))
        else:
            end_thread(ended)

    warnings.showwarning, threading.excepthook = show, end
    try:
        yield
    finally:
        warnings.showwarning, threading.excepthook = show_warning, end_thread
