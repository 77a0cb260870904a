"""Standard streams that are closed, full, cut off or know few letters: a command works all the same."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import sys
from collections.abc import Iterator
from typing import NoReturn

from harness.errors import UsageError

_NAMES = ("stdin", "stdout", "stderr")


def make_usable() -> None:
    """Open what this process was started without, and let every text be printed."""
    for descriptor, name in enumerate(_NAMES):
        try:
            os.fstat(descriptor)
        except OSError:
            # The lowest number that is free is this one: else the next file or socket would be given what is
            # meant for a terminal.
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # noqa: FBT003 - by position only
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(descriptor, "w" if descriptor else "r", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # Paths can hold bytes that are no text, and not every terminal knows every letter.
            stream.reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def telling() -> Iterator[None]:
    """Print an answer; a reader that has left is no error.

    Raises:
        UsageError: standard output takes no more.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        lead_nowhere()
    except OSError as error:
        if error.filename is not None:
            raise
        lead_nowhere()
        raise UsageError(
            f"must take the whole answer, got {error.strerror}; redirect it elsewhere", field="stdout"
        ) from None


def end_process(status: int) -> NoReturn:
    """End this process at once, with all that it has said.

    Python would first take itself apart, beneath threads of Ray's and gRPC's native halves that still run.
    """
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def lead_nowhere() -> None:
    """Let standard output go on to nobody; at exit Python would flush into it once more and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
