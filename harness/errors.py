"""Errors of the harness: each has a message of one line and an exit status."""

from __future__ import annotations

import contextlib
import errno
import traceback
from collections.abc import Iterator
from typing import ClassVar

EXIT_OK = 0
EXIT_CASE = 1
EXIT_USAGE = 2
EXIT_MISSING = 3
EXIT_REGRESSION = 4
EXIT_INTERRUPTED = 130
INSTALL = "run `pip install 'stratbench[cpu]'`, or `make setup` in a checkout"
"""Instruction for a missing package."""

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
"""Error numbers of a full disk, or of a user's full quota."""

UNSUPPORTED = "unsupported"
"""Failure type of a strategy that cannot run this workload or shape; its case is skipped."""
NON_FINITE_LOSS, NON_FINITE_GRADIENTS = "non-finite-loss", "non-finite-gradients"
"""Failure types of a training that diverged."""
NO_DEVICE = "no-device"
"""Failure type of workers without the case's devices, or that do not compute on them."""
OUT_OF_MEMORY = "out-of-memory"
"""Failure type of a case that needs more memory than its workers, or its check, can have."""


def with_field(field: str | None, message: str) -> str:
    """Begin a message with its field, unless it begins with that word already."""
    return message if not field or message.startswith(f"{field} ") else f"{field}: {message}"


class HarnessError(Exception):
    """Base of all errors with a cause outside the harness's own code.

    Args:
        message: one line; names the thing, the rule, what was received, and the way out.
        field: dotted path of the wrong field or option, or None.
    """

    exit_status: ClassVar[int] = EXIT_USAGE

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field

    def __str__(self) -> str:
        return with_field(self.field, self.message)


class Interrupted(BaseException):
    """Ctrl-C or SIGTERM, with an instruction; Typer would drop a KeyboardInterrupt's message."""


class UsageError(HarnessError):
    """A command line, a file or a user's own code that cannot be used."""


class StoreError(HarnessError):
    """A run folder that cannot be read or written."""


class MissingError(HarnessError):
    """Something that this machine lacks; the message says how to get it."""

    exit_status: ClassVar[int] = EXIT_MISSING


class CaseError(HarnessError):
    """Failure of one case; the run goes on, and the case's record has this error.

    Args:
        kind: kebab-case type of the failure (`worker-died`, `non-finite-loss`, …).
        message: one line.
        stage: stage that failed (`provision`, `load`, `capture`, `plan`, `transform`, `input`, `restore`,
            `check`, `verify`, `run`, `checkpoint`, `evaluate`, `collect`).
    """

    exit_status: ClassVar[int] = EXIT_CASE

    def __init__(self, kind: str, message: str, *, stage: str, field: str | None = None) -> None:
        super().__init__(message, field=field)
        self.kind = kind
        self.stage = stage

    def __reduce__(self) -> tuple[object, ...]:
        # Exceptions pickle by their positional arguments; this one crosses process borders.
        return _case_error, (self.kind, self.message, self.stage, self.field)


def _case_error(kind: str, message: str, stage: str, field: str | None) -> CaseError:
    return CaseError(kind, message, stage=stage, field=field)


def first_line(text: str, otherwise: str = "no message") -> str:
    """First line of an error's message, or `otherwise` if it is empty."""
    return next(iter(text.strip().splitlines()), otherwise)[:300]


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and its chain of causes, without those hidden by `raise … from None`."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def is_disk_full(error: BaseException) -> bool:
    """True if an error was caused by a full disk, which means exit status 3."""
    return any(isinstance(cause, OSError) and cause.errno in DISK_FULL for cause in causes(error))


def unexpected(error: Exception) -> CaseError:
    """Failure of a case from an unexpected exception."""
    failure = CaseError(
        "internal-error",
        f"unexpected {type(error).__name__}: {first_line(str(error))}; report the traceback in failure.log",
        stage="run",
    )
    failure.add_note("".join(traceback.format_exception(error)).rstrip())
    return failure


@contextlib.contextmanager
def own_errors() -> Iterator[None]:
    """Turn an unexpected exception into the failure of one case, so that the run goes on.

    Raises:
        CaseError: any exception that is not a `HarnessError`.
    """
    try:
        yield
    except HarnessError:
        raise
    except Exception as error:
        raise unexpected(error) from error
