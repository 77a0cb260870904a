"""Identity of this code: its version, and a hash that detects images with other code."""

import hashlib
from functools import cache
from importlib import metadata
from pathlib import Path

_PACKAGES = ("harness", "reports", "strategies", "workloads")


def version() -> str:
    """Version of this distribution; `unknown` if it is not installed."""
    try:
        return metadata.version("stratbench")
    except metadata.PackageNotFoundError:
        return "unknown"


@cache
def source_hash(root: Path | None = None) -> str:
    """Hash the names and contents of all Python files of the project's packages; 64 hex digits.

    Args:
        root: folder of the packages; None for that of the running code.
    """
    folder = root or Path(__file__).resolve().parents[2]
    digest = hashlib.sha256()
    for package in _PACKAGES:
        for path in sorted((folder / package).rglob("*.py")):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(folder).as_posix()} {len(content)}\n".encode())
            digest.update(content)
    return digest.hexdigest()


if __name__ == "__main__":
    print(source_hash(Path.cwd()))  # noqa: T201 - asked for by `make image`
