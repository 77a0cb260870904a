"""Files of real data, as a person gives them: by path, and with a checksum where it matters."""

import hashlib
from pathlib import Path

from workloads.errors import WorkloadError

DATA, CHECKSUM = "data", "data_sha256"


def data_files(data: str, sha256: str | None = None, *, field: str = DATA) -> tuple[Path, ...]:
    """Find the files of a data set: the one given, or all of a folder but hidden ones, by name.

    Args:
        data: path of a file or folder.
        sha256: what the file's bytes must hash to, or of a folder what `LC_ALL=C sha256sum *` prints there;
            None takes any.
        field: the parameter that the path is of, for errors.

    Raises:
        WorkloadError: when there is none, or what is there is not what was asked for.
    """
    path = Path(data)
    if not path.exists():
        message = (
            f"{field} must be a file or folder where workers run, got {data!r}, which is not there; "
            "correct the path, or leave it out"
        )
        raise WorkloadError(message, field=field)
    inside = sorted(path.iterdir()) if path.is_dir() else [path]
    files = tuple(each for each in inside if each.is_file() and each.name[0] != ".")
    if not files:
        message = f"{field} must have files, got {data!r}, an empty folder; correct the path, or leave it out"
        raise WorkloadError(message, field=field)
    if sha256 is not None:
        _check(path, files, sha256)
    return files


def one_file(data: str, sha256: str | None = None, *, field: str = DATA) -> Path:
    """Find a data set that is one file.

    Raises:
        WorkloadError: as `data_files`, or when there are several.
    """
    files = data_files(data, sha256, field=field)
    if len(files) > 1:
        message = f"{field} must be one file, got {data!r} with {len(files)}; give the path of one"
        raise WorkloadError(message, field=field)
    return files[0]


def read_text(path: Path, *, field: str = DATA) -> str:
    """Read a text file.

    Raises:
        WorkloadError: when it is not in UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        message = (
            f"{field} must be text in UTF-8, got byte {error.object[error.start]:#04x} at {error.start:,} of "
            f"{path}; convert it with iconv"
        )
        raise WorkloadError(message, field=field) from error


def _check(path: Path, files: tuple[Path, ...], sha256: str) -> None:
    sums = {each.name: _sha256(each) for each in files}
    found = sums[path.name] if path.is_file() else _listing(sums)
    if found != sha256:
        message = (
            f"data_sha256 must be that of {path}, {found}, got {sha256}; fetch the data anew, or correct or "
            "leave out data_sha256"
        )
        raise WorkloadError(message, field=CHECKSUM)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _listing(sums: dict[str, str]) -> str:
    lines = "".join(f"{digest}  {name}\n" for name, digest in sums.items())
    return hashlib.sha256(lines.encode()).hexdigest()
