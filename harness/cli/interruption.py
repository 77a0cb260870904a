"""Ctrl-C, a termination, a hang-up: each interrupts a command once, and its cleaning is left alone."""

from __future__ import annotations

import _thread
import contextlib
import signal
import sys
import threading
import time
from collections.abc import Iterator

_AGAIN_S = 0.1
_IMPATIENT_S = 5.0
"""Who interrupts again so soon wants the command to end, not to be left half cleaned."""


class _Interruption:
    """Raises KeyboardInterrupt where a signal meets the command."""

    def __init__(self) -> None:
        self._deaf_until_s = 0.0

    def hear(self, *_: object) -> None:
        """Interrupt, unless that has just been done."""
        now_s = time.monotonic()
        if now_s >= self._deaf_until_s:
            self._deaf_until_s = now_s + _IMPATIENT_S
            raise KeyboardInterrupt

    def insist(self, unraisable: sys.UnraisableHookArgs) -> None:
        """Interrupt again where that was lost: Python drops what is raised while it clears an object."""
        if unraisable.exc_type is KeyboardInterrupt:
            self._deaf_until_s = 0.0
            # Not at once, or it would come while this still clears, and be dropped again.
            threading.Timer(_AGAIN_S, _thread.interrupt_main).start()
        else:
            sys.__unraisablehook__(unraisable)


@contextlib.contextmanager
def signals_interrupt(*, for_good: bool) -> Iterator[None]:
    """Let a termination unwind as Ctrl-C does, so that everything started is stopped.

    Args:
        for_good: whether the process ends with the command, so that nothing is left to interrupt.
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
    tell, sys.unraisablehook = sys.unraisablehook, interruption.insist
    try:
        yield
    finally:
        sys.unraisablehook = tell
        for number, handler in heard.items():
            signal.signal(number, signal.SIG_IGN if for_good else handler)
