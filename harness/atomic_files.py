"""Files that a reader sees whole or not at all, and that survive a power failure."""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

from harness.canonical import json_value

_UNFINISHED = re.compile(r"\..+\.[0-9a-f]{8}\.tmp")


def write_text(path: Path, text: str) -> Path:
    """Write a file so that a reader sees either all of it or the old content."""
    return write_bytes(path, text.encode())


def write_json(path: Path, document: object) -> Path:
    """Write a JSON file, atomically; numbers that are not finite become null."""
    return write_bytes(path, json_bytes(document))


def json_bytes(document: object) -> bytes:
    """A JSON document as a file holds it; numbers that are not finite become null."""
    return f"{json.dumps(json_value(document), indent=2, allow_nan=False)}\n".encode()


def write_bytes(path: Path, data: bytes) -> Path:
    """Write a file atomically; its folder is created if needed.

    Raises:
        OSError: the file cannot be written, or the path is not that of a file.
    """
    if not path.name:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    with suppress(FileNotFoundError, NotADirectoryError):
        mode = path.lstat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise FileExistsError(errno.EEXIST, "a link, pipe or device has its name", str(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    sync_directory(path.parent)
    return path


def write_output(path: Path, data: bytes) -> None:
    """Write a file named by the user: links are followed, and pipes and devices are written to directly."""
    if is_stream(path):
        with path.open("wb") as stream:
            stream.write(data)
    else:
        write_bytes(path.resolve(), data)


def is_stream(path: Path) -> bool:
    """Return True if a path leads to a pipe, a device or a socket."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def why_not_writable(path: Path) -> str | None:
    """Reason why a file cannot be written, tested in its folder, which is created; None if it can."""
    try:
        if path.is_dir():
            return os.strerror(errno.EISDIR)
        if is_stream(path):
            return None if os.access(path, os.W_OK) else os.strerror(errno.EACCES)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            return None
    except OSError as error:
        return error.strerror or str(error)


def is_unfinished(path: Path) -> bool:
    """True if a name is that of a file in the middle of being written."""
    return _UNFINISHED.fullmatch(path.name) is not None


def remove_unfinished(folder: Path) -> None:
    """Remove partial files of killed writers below a folder; nobody may be writing there."""
    for path in filter(is_unfinished, folder.rglob(".*.tmp")):
        path.unlink(missing_ok=True)


def sync_directory(path: Path) -> None:
    """Flush a folder's names to disk."""
    # A rename survives a power failure only after its folder is flushed.
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
