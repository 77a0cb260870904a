"""Output files named by the user, checked before anything is done."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.atomic_files import is_stream, why_not_writable
from harness.errors import UsageError
from harness.records.run_documents import is_of_run


def output_file(path: Path, *, field: str) -> Path:
    """Path of an output file that is valid in every process; its folder is created if needed.

    Args:
        field: option that names the file.
    Raises:
        UsageError: it cannot be written, or belongs to a run or a history.
    """
    require_no_records(path, field=field)
    with naming(path, field=field):
        why = why_not_writable(path)
        if why is not None:
            raise OSError(0, why)
    if is_stream(path):
        # /dev/stdout is a link to /proc/self/fd/1, a different file in each process.
        while path.is_symlink() and os.path.lexists(onward := path.parent / path.readlink()):
            path = onward
        return path.parent.resolve() / path.name
    return path


def require_no_records(path: Path, *, field: str) -> None:
    """Refuse a path of the records or documents of a run, or of a history of nights; links are followed.

    Raises:
        UsageError: the path is one of these.
    """
    from reports.history.database import is_of_history

    target = Path(os.path.realpath(path))
    for is_of, owner in ((is_of_run, "a run"), (is_of_history, "a history of nights")):
        if is_of(target):
            raise UsageError(f"{path} belongs to {owner} and is never overwritten; name another", field=field)


@contextmanager
def naming(path: Path, *, field: str) -> Iterator[None]:
    """Name the file and its option in errors of writing it.

    Raises:
        UsageError: it cannot be written.
    """
    try:
        yield
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}; name another", field=field) from error


def is_stdout(path: Path) -> bool:
    """True if a path leads to this process's standard output."""
    try:
        return os.path.samestat(path.stat(), os.fstat(1))
    except OSError:
        return False
