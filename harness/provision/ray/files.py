"""Files on their way from driver to workers and back: where both see the same ones, none."""

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class Files(Protocol):
    """What a cluster does about files before and after its processes use them."""

    def seen(self, path: Path) -> Path:
        """Where workers see a file or folder of the driver's."""

    def bring(self, n_workers: int, folders: Sequence[Path]) -> None:
        """Let the first workers see what others have made, and folders to write to.

        Args:
            folders: of the driver.
        Raises:
            WorkerDied: one of them cannot be given its files.
        """

    def take(self, n_workers: int) -> None:
        """Let the driver, and workers later, see what the first workers have made, where they still live."""


class SharedFiles:
    """Workers see the driver's own file system."""

    def seen(self, path: Path) -> Path:
        """The path itself."""
        return path.absolute()

    def bring(self, n_workers: int, folders: Sequence[Path]) -> None:
        """All is there."""

    def take(self, n_workers: int) -> None:
        """All is here."""
