"""Paths under which nodes and containers, which have other links, know the same file."""

import os
from pathlib import Path


def normalised(path: Path) -> Path:
    """The path from the root on, without `..`: after a link, that leads back to where the link lies."""
    return Path(os.path.abspath(path))  # noqa: PTH100 - Path.absolute leaves `..` as it is
