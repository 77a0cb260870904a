"""Files for machines without a common file system: listings, and archives of missing files."""

import os
import pickle
import stat
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeAlias

_TEMPORARY = ".arriving"


@dataclass(frozen=True, kw_only=True, slots=True)
class Stamp:
    """Size and time, which distinguish a file from an earlier one of the same name."""

    n_bytes: int
    changed_ns: int


Listing: TypeAlias = Mapping[str, Stamp]
"""Name below a folder, with slashes → stamp."""


def listing(folder: Path) -> dict[str, Stamp]:
    """All files below a folder, without links, sockets and files that disappear during the walk."""
    stamps: dict[str, Stamp] = {}
    for place, _, names in os.walk(folder):
        for name in names:
            path = Path(place, name)
            try:
                facts = path.lstat()
            except OSError:
                continue
            if stat.S_ISREG(facts.st_mode) and not name.endswith(_TEMPORARY):
                stamp = Stamp(n_bytes=facts.st_size, changed_ns=facts.st_mtime_ns)
                stamps[path.relative_to(folder).as_posix()] = stamp
    return stamps


def pack(files: Mapping[str, Path]) -> bytes:
    """Archive of files by their new names; missing files are left out."""
    packed: dict[str, tuple[int, bytes]] = {}
    for name, path in files.items():
        try:
            packed[name] = (path.stat().st_mtime_ns, path.read_bytes())
        except OSError:
            continue
    return pickle.dumps(packed, protocol=pickle.HIGHEST_PROTOCOL)


def unpack(archive: bytes, folder: Path, wanted: Collection[str], *, below: str = "") -> None:
    """Write some files of an archive below a folder, each atomically and with its old time stamp.

    Args:
        wanted: names to unpack.
        below: prefix to remove from names.
    Raises:
        ValueError: a name leads out of the folder.
    """
    # Only between processes of one run, which trust each other as they trust the workload.
    packed: dict[str, tuple[int, bytes]] = pickle.loads(archive)  # noqa: S301
    for name, (changed_ns, content) in packed.items():
        if name not in wanted:
            continue
        if not name.startswith(below) or {"/", ".."}.intersection(PurePosixPath(name).parts):
            raise ValueError(f"a file of an archive must stay below its folder, got {name!r}")
        path = folder / name.removeprefix(below)
        path.parent.mkdir(parents=True, exist_ok=True)
        arriving = path.with_name(f"{path.name}{_TEMPORARY}")
        arriving.write_bytes(content)
        os.utime(arriving, ns=(changed_ns, changed_ns))
        # A process that has the old file open, or mapped, keeps it.
        arriving.replace(path)
