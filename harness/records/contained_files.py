"""Files of a folder, opened without leaving it: no link is followed, and only regular files are used.

A run folder or a store may come from anyone. A link in it could bring any file of the reader's into a report,
or have any file overwritten; a FIFO would keep the reader waiting, and a device has no end.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.errors import StoreError

MOST_BYTES = 1 << 30
"""Of a file that is read as a whole."""
_WAY_OUT = "put back a copy of what the run wrote"
_OPEN_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Opening a FIFO would wait for a writer.
_OPEN_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_WRITE_FILE = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@contextmanager
def opened_inside(folder: Path, *names: str) -> Iterator[int]:
    """Open a regular file that lies in a folder.

    Args:
        folder: which may itself be reached by links, as whoever named it meant.
        names: of the folders on the way, and of the file.
    Yields:
        A descriptor for reading, closed afterwards.
    Raises:
        StoreError: a name is none of a file of its folder, or what it names is a link or no regular file.
        FileNotFoundError: there is no such file. OSError: it cannot be opened.
    """
    with _descended(folder, names, is_file=True) as at:
        if not stat.S_ISREG(os.fstat(at).st_mode):
            raise StoreError(_refusal(names, "a pipe, a device or a folder"))
        yield at


def read_inside(folder: Path, *names: str, most_bytes: int = MOST_BYTES) -> bytes:
    """Read a regular file that lies in a folder.

    Args:
        folder: as for `opened_inside`.
        names: as for `opened_inside`.
        most_bytes: beyond which the file is refused.
    Raises:
        StoreError: as `opened_inside`, or it is longer. OSError: it cannot be read.
    """
    with opened_inside(folder, *names) as file:
        size = os.fstat(file).st_size
        if size > most_bytes:
            raise StoreError(
                f"{'/'.join(names)} must be at most {most_bytes:,} bytes, got {size:,}; {_WAY_OUT}"
            )
        with os.fdopen(os.dup(file), "rb") as stream:
            return stream.read(most_bytes)


def checksum_inside(folder: Path, *names: str) -> str:
    """Checksum of a regular file that lies in a folder, however long it is; as `checksums.file_checksum`.

    Args:
        folder: as for `opened_inside`.
        names: as for `opened_inside`.
    Raises:
        StoreError: as `opened_inside`. OSError: it cannot be read.
    """
    with opened_inside(folder, *names) as file, os.fdopen(os.dup(file), "rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def written_files(folder: Path, *names: str) -> tuple[str, ...]:
    """Names of what lies in a folder below another and is not empty, the last written last.

    Args:
        folder: as for `opened_inside`.
        names: of the folders on the way, and of that whose files are wanted.
    Raises:
        StoreError: as `opened_inside`. OSError: it cannot be read.
    """
    with _descended(folder, names, is_file=False) as at:
        names_below = sorted(os.listdir(at))  # noqa: PTH208 - of an open folder, which has no path
        stats = {name: os.stat(name, dir_fd=at, follow_symlinks=False) for name in names_below}
    # What is no file is none to be read either, but to be named.
    written = [name for name, each in stats.items() if each.st_size or not stat.S_ISREG(each.st_mode)]
    return tuple(sorted(written, key=lambda name: stats[name].st_mtime_ns))


def is_inside(folder: Path, *names: str) -> bool:
    """Whether a regular file lies in a folder, with no link on the way to it."""
    try:
        with opened_inside(folder, *names):
            return True
    except (OSError, StoreError):
        return False


def is_name(text: str) -> bool:
    """Whether text can name a file of a folder, and nothing outside of it."""
    return text not in ("", ".", "..") and "/" not in text and text.isprintable()


def open_to_write(path: Path, *, is_appended: bool = False, is_replaced: bool = False) -> int:
    """Open a regular file of ours for writing in place, made if need be; its folder must be there.

    What is replaced as a whole goes through `atomic_files`, where a link is replaced and not followed.

    Args:
        is_appended: whether what is written goes to the end.
        is_replaced: whether what the file holds is removed first; otherwise it stays.
    Returns:
        A descriptor for reading and writing; close it.
    Raises:
        StoreError: it is a link, has another name, or is no regular file. OSError: it cannot be opened.
    """
    require_regular(path)
    try:
        file = os.open(path, _WRITE_FILE | (os.O_APPEND if is_appended else 0), 0o644)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _not_own(path, "a symbolic link") from None
        raise
    try:
        _require_regular(path, os.fstat(file))
        if is_replaced:
            os.ftruncate(file, 0)
    except BaseException:
        os.close(file)
        raise
    return file


def require_regular(path: Path) -> None:
    """Refuse what is there in place of a file of ours, before a library opens it by its name.

    Raises:
        StoreError: it is a link, has another name, or is no regular file. OSError: nobody can look.
    """
    with suppress(FileNotFoundError):
        _require_regular(path, path.lstat())


def make_folder(folder: Path, *names: str) -> Path:
    """Make a folder below another one and those on the way, where they are not there; no link is followed.

    Args:
        folder: as for `opened_inside`.
        names: of the folders, each in the one before.
    Raises:
        StoreError: one of them is a link or no folder. OSError: it cannot be made.
    """
    path = folder
    for name in names:
        path = path / name
        with suppress(FileExistsError):
            path.mkdir()
        mode = path.lstat().st_mode
        if not stat.S_ISDIR(mode):
            raise _not_own(path, _kind(mode))
    return path


def require_plain(folder: Path) -> None:
    """Refuse a folder with a link, or anything but folders and regular files, somewhere in it.

    Raises:
        StoreError: there is one. OSError: a folder cannot be read.
    """
    for item in sorted(os.scandir(folder), key=lambda item: item.name):
        if item.is_dir(follow_symlinks=False):
            require_plain(Path(item.path))
        elif not item.is_file(follow_symlinks=False):
            raise _not_own(Path(item.path), _kind(item.stat(follow_symlinks=False).st_mode))


@contextmanager
def _descended(folder: Path, names: tuple[str, ...], *, is_file: bool) -> Iterator[int]:
    _require_names(names)
    at = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for depth in range(1, len(names) + 1):
            below = _opened(at, folder, names[:depth], is_file=is_file and depth == len(names))
            os.close(at)
            at = below
        yield at
    finally:
        os.close(at)


def _require_names(names: tuple[str, ...]) -> None:
    for name in names:
        if not is_name(name):
            raise StoreError(
                f"{'/'.join(names)!a:.200} must lie in the run folder, got a path by way of {name!a:.80}; "
                f"it is not followed: {_WAY_OUT}"
            )


def _opened(at: int, folder: Path, names: tuple[str, ...], *, is_file: bool) -> int:
    try:
        return os.open(names[-1], _OPEN_FILE if is_file else _OPEN_FOLDER, dir_fd=at)
    except OSError as error:
        try:
            mode = os.stat(names[-1], dir_fd=at, follow_symlinks=False).st_mode
        except OSError:
            mode = 0
        if stat.S_ISLNK(mode):
            raise StoreError(_refusal(names, "a symbolic link")) from None
        if stat.S_ISSOCK(mode):
            raise StoreError(_refusal(names, "a socket")) from None
        raise OSError(error.errno, error.strerror, str(folder.joinpath(*names))) from None


def _require_regular(path: Path, facts: os.stat_result) -> None:
    if not stat.S_ISREG(facts.st_mode):
        raise _not_own(path, _kind(facts.st_mode))
    if facts.st_nlink > 1:
        raise _not_own(path, "one that has another name as well (a hard link)")


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFREG: "a file",
        stat.S_IFLNK: "a symbolic link",
        stat.S_IFDIR: "a folder",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "a pipe or a device")


def _not_own(path: Path, got: str) -> StoreError:
    return StoreError(
        f"{path} must be a file or folder of its own, got {got}; nothing was written to it: remove it, or "
        "name another folder"
    )


def _refusal(names: tuple[str, ...], got: str) -> str:
    return (
        f"{'/'.join(names)} must be a file of the run folder's own, got {got}; it is not followed: {_WAY_OUT}"
    )
