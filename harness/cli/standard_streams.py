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


def escape_unknown_letters() -> None:
    """Let every text be printed: paths can hold bytes that are no text, and terminals can lack letters."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
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
        _lead_nowhere()
    except OSError as error:
        if error.filename is not None:
            raise
        _lead_nowhere()
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


def _lead_nowhere() -> None:
    """Let standard output go on to nobody; at exit Python would flush into it once more and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
