"""Process of a command: its signals, standard streams and network."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, NoReturn

import typer

from harness.cli.options import MACHINE, TimeoutFactor
from harness.errors import MissingError, UsageError
from harness.measure.timeouts import timeouts
from harness.provision import network_namespace
from harness.records.safe_text import redacted_command
from harness.requests import RunOptions

_HANDLER_LIMIT_S = 2.0
"""Longest time until Python's handler of a signal runs, unless the main thread is in native code."""
_POLL_S = 0.05
_REPEAT_S = 0.05
"""Time until a KeyboardInterrupt that was ignored is raised again."""
_CLEANING_S = 5.0
"""Time in which a second interrupt is ignored, so that cleaning up is not cut short."""


class _Interruption:
    """Handler of signals that raises KeyboardInterrupt.

    Attributes:
        has_run: True once it has handled a signal.
    """

    def __init__(self) -> None:
        self._ignores_until_s = 0.0
        self._number = signal.SIGINT
        self.has_run = False

    def handle(self, number: int, _: object) -> None:
        self.has_run = True
        self._number = signal.Signals(number)
        now_s = time.monotonic()
        if now_s >= self._ignores_until_s:
            self._ignores_until_s = now_s + _CLEANING_S
            raise KeyboardInterrupt

    def repeat_if_lost(self, ignored: sys.UnraisableHookArgs) -> None:
        """Hook for exceptions that Python ignores; a KeyboardInterrupt among them is raised again soon.

        Finalizers, and native modules while they are imported, ignore all exceptions.
        """
        if ignored.exc_type is KeyboardInterrupt:
            self._ignores_until_s = 0.0
            # Raised in this hook, it would be ignored, too.
            again = threading.Timer(
                _REPEAT_S, signal.pthread_kill, (threading.main_thread().ident, self._number)
            )
            again.daemon = True
            again.start()
        else:
            sys.__unraisablehook__(ignored)

    def end_in_native_code(
        self, signals: socket.socket, numbers: Collection[int], end: Callable[[], None]
    ) -> None:
        """Wait for signals, and end the command if native code keeps Python from handling one.

        Ray waits for its servers in native code, for as long as half a minute.
        """
        while number := signals.recv(1):
            limit_s = time.monotonic() + _HANDLER_LIMIT_S
            while number[0] in numbers and not self.has_run:
                if time.monotonic() > limit_s:
                    end()
                    return
                time.sleep(_POLL_S)


@contextlib.contextmanager
def signals_interrupt(
    *, for_good: bool, end: Callable[[], None] | None = None
) -> Iterator[Callable[[], None]]:
    """Handle termination like Ctrl-C, so that everything started is stopped.

    Args:
        for_good: True if the process ends with the command, so that nothing is left to interrupt.
        end: function that ends the process if its main thread handles no signal; guards clean up after it.
    Yields:
        Function after whose call signals end native code, too. It starts a thread, and a process with
        several cannot move to a network namespace.
    """
    interruption = _Interruption()
    usual = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    # A signal that the caller ignores (nohup) stays ignored.
    replaced = {number: handler for number, handler in usual.items() if signal.getsignal(number) == handler}
    for number in replaced:
        signal.signal(number, interruption.handle)
    hook_before, sys.unraisablehook = sys.unraisablehook, interruption.repeat_if_lost
    try:
        with contextlib.ExitStack() as stack:

            def watch_native_code() -> None:
                if end is not None:
                    stack.enter_context(_watching_thread(interruption, replaced, end))

            yield watch_native_code
    finally:
        sys.unraisablehook = hook_before
        for number, handler in replaced.items():
            signal.signal(number, signal.SIG_IGN if for_good else handler)


@contextlib.contextmanager
def _watching_thread(
    interruption: _Interruption, numbers: Collection[int], end: Callable[[], None]
) -> Iterator[None]:
    """Start a thread that is woken as soon as the process gets a signal."""
    reader, writer = socket.socketpair()
    with reader, writer:
        writer.settimeout(0.0)
        thread = threading.Thread(
            target=interruption.end_in_native_code,
            args=(reader, numbers, end),
            name="interruptions",
            daemon=True,
        )
        thread.start()
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            interruption.has_run = True  # perhaps a handler of Ray's has
            writer.close()
            thread.join()


def prepare_streams() -> None:
    """Make every text printable, and reserve the descriptors of closed standard streams.

    Paths can hold bytes that are no text, and terminals can lack letters. Printing to a closed standard
    output fails at the end, as with other programs.
    """
    for number, flags in enumerate((os.O_RDONLY, os.O_RDONLY, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, flags), True)  # noqa: FBT003
    if sys.stdout is None:
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115 - open as long as the process
    if sys.stderr is None:
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115 - as above
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def printing() -> Iterator[None]:
    """Print an answer; a closed pipe is no error.

    Raises:
        UsageError: standard output is full or closed.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        _discard_stdout()
    except OSError as error:
        if error.filename is not None:
            raise
        _discard_stdout()
        raise UsageError(
            f"must take the whole answer, got {error.strerror}; redirect it elsewhere", field="stdout"
        ) from error


def end_process(status: int) -> NoReturn:
    """Flush all output and end this process at once.

    Python's own shutdown can crash, because native threads of Ray and gRPC still run.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _discard_stdout() -> None:
    """Send standard output to the null device, because Python flushes it once more at exit and complains."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerOptions:
    """Options of commands that run workers: their time limit, and their network."""

    timeout_factor: TimeoutFactor = 1.0
    require_isolation: Annotated[
        bool,
        typer.Option(
            "--require-isolation",
            help="Fail if workers cannot get a private network.",
            rich_help_panel=MACHINE,
        ),
    ] = False
    no_isolation: Annotated[
        bool,
        typer.Option(
            "--no-isolation",
            help="Use the host's network, for workloads that download data.",
            rich_help_panel=MACHINE,
        ),
    ] = False

    @property
    def arguments(self) -> tuple[str, ...]:
        """Arguments for a command line; those with default values are left out."""
        return (
            *(("--timeout-factor", str(self.timeout_factor)) if self.timeout_factor != 1 else ()),
            *(("--no-isolation",) if self.no_isolation else ()),
            *(("--require-isolation",) if self.require_isolation else ()),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """Caller of the command line: the `obj` of each command's context.

    Args:
        owns_process: True if the process is the command's alone, so that it may move to another network.
        settled: function to call once the process is in its final namespace and may start threads.
        arguments: command line, without the program's name.
        as_json: True if a program reads the answer.
    """

    owns_process: bool
    settled: Callable[[], None]
    arguments: tuple[str, ...]
    as_json: bool


def is_watched(context: typer.Context) -> bool:
    """True if a person at a terminal watches the command's progress."""
    return not context.obj.as_json and sys.stderr.isatty()


def run_options(
    context: typer.Context,
    workers: WorkerOptions,
    *,
    exposure: str | None,
    **own: Any,  # noqa: ANN401 - fields of the options
) -> RunOptions:
    """Options of a run by its command line.

    Args:
        own: further fields of `RunOptions`.
    """
    from harness.host_facts import allowed

    caller: Caller = context.obj
    return RunOptions(
        timeouts=timeouts(workers.timeout_factor),
        quiet=caller.as_json,
        live=is_watched(context),
        exposure=exposure,
        environ=allowed(os.environ),
        command=redacted_command(("stratbench", *caller.arguments)),
        **own,
    )


def isolate(
    context: typer.Context, workers: WorkerOptions, *, providers: Sequence[str] = ("local",)
) -> str | None:
    """Move this process, and all that it starts, to a private network if its workers are local.

    No module that starts threads may have been imported before.

    Args:
        providers: providers of the workers.
    Returns:
        Reason why servers can be reached from outside; None if they cannot, or no workers are local.
    Raises:
        UsageError: the options contradict each other. MissingError: the required isolation is impossible.
    """
    if "local" not in providers and not (workers.require_isolation and "cluster" in providers):
        return None
    if workers.no_isolation and workers.require_isolation:
        raise UsageError("must not be given with --require-isolation; drop one", field="no-isolation")
    other = next((name for name in providers if name != "local"), None)
    if workers.no_isolation:
        exposure: str | None = "--no-isolation was given"
    elif other is not None:
        exposure = f"provider {other} needs the host's network"
    else:
        exposure = _moved(context)
    if exposure is not None and workers.require_isolation:
        raise MissingError(
            f"cannot create a network namespace: {exposure}; {network_namespace.WAY_OUT}",
            field="require-isolation",
        )
    context.obj.settled()
    return exposure


def _moved(context: typer.Context) -> str | None:
    """Move this process to a private network, or return the reason why it stays."""
    if not context.obj.owns_process:
        return "the process is another program's"
    from harness.provision.temporary_folder import reap

    # Inside the namespace, only root sees which processes outside belong to dead runs.
    reap()
    return network_namespace.isolate()
