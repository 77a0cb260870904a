"""Files of a folder, opened safely: no links are followed, and only regular files are used.

A run folder or a store may come from anyone. A link in it could put any of the reader's files into a report,
or overwrite any file; a FIFO would block the reader, and a device has no end.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from harness.errors import StoreError

MOST_BYTES = 1 << 30
"""Largest file that is read as a whole."""
_WAY_OUT = "remove it, or put back a copy of what was written"
# Opening a FIFO would wait for a writer.
_SAFELY = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_KINDS = {
    stat.S_IFREG: "a file",
    stat.S_IFLNK: "a symbolic link",
    stat.S_IFDIR: "a folder",
    stat.S_IFSOCK: "a socket",
}


@contextmanager
def opened_inside(folder: Path, *names: str, kind: int = stat.S_IFREG) -> Iterator[int]:
    """Open a regular file in a folder, without links below the folder.

    Args:
        folder: folder, which may itself be reached by links.
        names: names of the folders on the way, and of the file.
        kind: file type of the last name, as in `stat`.
    Yields:
        A descriptor for reading, closed afterwards.
    Raises:
        StoreError: a name leads out of its folder, or is that of another type of file.
        FileNotFoundError: there is no such file. OSError: it cannot be opened.
    """
    with _located(folder, names, kind) as place:
        # By descriptor, because the file's name may lead elsewhere by now.
        file = os.open(f"/proc/self/fd/{place}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield file
    finally:
        os.close(file)


@contextmanager
def _located(folder: Path, names: tuple[str, ...], kind: int) -> Iterator[int]:
    """Walk down from a folder name by name; yield a descriptor of the last one that has not opened it."""
    place = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for depth, name in enumerate(names, start=1):
            if not is_name(name):
                raise StoreError(
                    f"{'/'.join(names)!a:.200} must be in the run folder, got a path by way of {name!a:.80}; "
                    f"it is not followed: {_WAY_OUT}"
                )
            above, place = place, os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=place)
            os.close(above)
            wanted = kind if depth == len(names) else stat.S_IFDIR
            _require_kind("/".join(names[:depth]), os.fstat(place), wanted)
        yield place
    except OSError as error:
        error.filename = str(Path(folder, *names))
        raise
    finally:
        os.close(place)


def read_inside(folder: Path, *names: str, most_bytes: int = MOST_BYTES) -> bytes:
    """Read a file of at most `most_bytes`; see `opened_inside`.

    Raises:
        StoreError: see `opened_inside`; or the file is longer. OSError: it cannot be read.
    """
    with opened_inside(folder, *names) as file, os.fdopen(file, "rb", closefd=False) as stream:
        size = os.fstat(file).st_size
        if size > most_bytes:
            raise StoreError(
                f"{'/'.join(names)} must be at most {most_bytes:,} bytes, got {size:,}; {_WAY_OUT}"
            )
        return stream.read(most_bytes)


def written_files(folder: Path, *names: str) -> tuple[str, ...]:
    """Names of everything in a folder that is not empty, in the order of last writing.

    Raises:
        StoreError: see `opened_inside`. OSError: it cannot be read.
    """
    with opened_inside(folder, *names, kind=stat.S_IFDIR) as opened, os.scandir(opened) as items:
        stats = {item.name: item.stat(follow_symlinks=False) for item in items}
    # Links and pipes cannot be read either, but they are named.
    written = [name for name, facts in stats.items() if facts.st_size or not stat.S_ISREG(facts.st_mode)]
    return tuple(sorted(written, key=lambda name: (stats[name].st_mtime_ns, name)))


def is_inside(folder: Path, *names: str) -> bool:
    """True if there is a file that `opened_inside` would open."""
    try:
        with _located(folder, names, stat.S_IFREG):
            return True
    except (OSError, StoreError):
        return False


def is_name(text: str) -> bool:
    """True if text is a possible name of a file directly in a folder."""
    return text not in ("", ".", "..") and "/" not in text and text.isprintable()


def open_to_write(path: Path, *, is_appended: bool = False, is_replaced: bool = False) -> int:
    """Open or create a regular file for writing in place; its folder must exist.

    Whole files are replaced through `atomic_files`, which refuses links, too.

    Args:
        is_appended: True writes at the end.
        is_replaced: True removes the old content first.
    Returns:
        Descriptor for reading and writing, for the caller to close.
    Raises:
        StoreError: it is a link, has a second name, or is no regular file. OSError: it cannot be opened.
    """
    require_regular(path)
    file = os.open(path, os.O_RDWR | os.O_CREAT | _SAFELY | (os.O_APPEND if is_appended else 0), 0o644)
    try:
        _require_own(path, os.fstat(file))
        if is_replaced:
            os.ftruncate(file, 0)
    except BaseException:
        os.close(file)
        raise
    return file


def require_regular(path: Path) -> None:
    """Refuse anything but a regular file without other names, before a library opens it by name.

    Raises:
        StoreError: it is a link, has a second name, or is no regular file. OSError: it cannot be examined.
    """
    with suppress(FileNotFoundError):
        _require_own(path, path.lstat())


def make_folder(folder: Path, *names: str) -> Path:
    """Make a folder and its missing parents below another one, without following links.

    Raises:
        StoreError: one of them is a link or not a folder. OSError: it cannot be made.
    """
    path = folder
    for name in names:
        path = path / name
        with suppress(FileExistsError):
            path.mkdir()
        _require_kind(path, path.lstat(), stat.S_IFDIR)
    return path


def require_plain(folder: Path) -> None:
    """Refuse a folder that contains anything but folders and regular files, at any depth.

    Raises:
        StoreError: it contains something else. OSError: a folder cannot be read.
    """
    for path in sorted(folder.iterdir()):
        facts = path.lstat()
        if stat.S_ISDIR(facts.st_mode):
            require_plain(path)
        else:
            _require_kind(path, facts, stat.S_IFREG)


def _require_own(path: Path, facts: os.stat_result) -> None:
    _require_kind(path, facts, stat.S_IFREG)
    if facts.st_nlink > 1:
        raise _refusal(path, "one that has another name as well (a hard link)")


def _require_kind(path: Path | str, facts: os.stat_result, kind: int) -> None:
    actual = stat.S_IFMT(facts.st_mode)
    if actual != kind:
        raise _refusal(path, _KINDS.get(actual, "a pipe or a device"))


def _refusal(path: Path | str, got: str) -> StoreError:
    return StoreError(
        f"{path} must be a file or folder of its own, got {got}; it is not followed: {_WAY_OUT}"
    )
