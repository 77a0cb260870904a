"""Ctrl-C, a termination, a hang-up: each interrupts a command once, and its cleaning is left alone."""

from __future__ import annotations

import contextlib
import signal
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterator

_UNHEARD_S = 2.0
_LOOK_S = 0.05
_IMPATIENT_S = 5.0
"""Who interrupts again so soon wants the command to end, not to be left half cleaned."""


class _Interruption:
    """Raises KeyboardInterrupt where a signal meets the command.

    Attributes:
        is_heard: whether one has.
    """

    def __init__(self) -> None:
        self._deaf_until_s = 0.0
        self.is_heard = False

    def hear(self, *_: object) -> None:
        """Interrupt, unless that has just been done."""
        self.is_heard = True
        now_s = time.monotonic()
        if now_s >= self._deaf_until_s:
            self._deaf_until_s = now_s + _IMPATIENT_S
            raise KeyboardInterrupt

    def end_unheard(self, signals: socket.socket, numbers: Collection[int], end: Callable[[], None]) -> None:
        """Wait for signals that C has taken, and end the command where Python gets no chance to hear one.

        Ray waits for its servers in native code, for as long as half a minute.
        """
        while number := signals.recv(1):
            limit_s = time.monotonic() + _UNHEARD_S
            while number[0] in numbers and not self.is_heard:
                if time.monotonic() > limit_s:
                    end()
                    return
                time.sleep(_LOOK_S)


@contextlib.contextmanager
def signals_interrupt(
    *, for_good: bool, end: Callable[[], None] | None = None
) -> Iterator[Callable[[], None]]:
    """Let a termination unwind as Ctrl-C does, so that everything started is stopped.

    Args:
        for_good: whether the process ends with the command, so that nothing is left to interrupt.
        end: what ends the process where its main thread hears nothing; guards clean up after it.
    Yields:
        what has signals heard, from then on, while the main thread is in native code; it starts a thread, and
        a process with several cannot move to a network namespace.
    """
    interruption = _Interruption()
    usual = {
        signal.SIGINT: signal.default_int_handler,
        signal.SIGTERM: signal.SIG_DFL,
        signal.SIGHUP: signal.SIG_DFL,
    }
    # A signal that the caller ignores (nohup) stays ignored.
    heard = {number: handler for number, handler in usual.items() if signal.getsignal(number) == handler}
    for number in heard:
        signal.signal(number, interruption.hear)
    try:
        with contextlib.ExitStack() as listening:

            def hear_in_native_code() -> None:
                if end is not None:
                    listening.enter_context(_taken_by_c(interruption, heard, end))

            yield hear_in_native_code
    finally:
        for number, handler in heard.items():
            signal.signal(number, signal.SIG_IGN if for_good else handler)


@contextlib.contextmanager
def _taken_by_c(
    interruption: _Interruption, numbers: Collection[int], end: Callable[[], None]
) -> Iterator[None]:
    """Have a thread of its own learn of signals as soon as the process is sent them."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.settimeout(0.0)
        thread = threading.Thread(
            target=interruption.end_unheard, args=(ours, numbers, end), name="interruptions", daemon=True
        )
        thread.start()
        before = signal.set_wakeup_fd(theirs.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            interruption.is_heard = True  # perhaps by a handler of Ray's
            theirs.close()
            thread.join()
