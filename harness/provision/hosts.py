"""Hosts and files of workers: interfaces that each provider implements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from harness.worker.process.forked_process import STOPPED_S

if TYPE_CHECKING:
    from harness.cluster import Limits
    from harness.worker.process.messages import CutOff, Died, Silent


class Hosts(Protocol):
    """Hosts of all workers; the defaults are for hosts that the provider neither starts nor replaces."""

    @property
    def addresses(self) -> Sequence[str]:
        """Address of each worker for its peers."""

    def is_up(self) -> bool:
        """True while Ray itself runs."""

    def options(self, worker: int) -> Mapping[str, object]:
        """Arguments of Ray's `options` that place a worker's actor on its current host."""
        del worker
        return {}

    def cores(self, worker: int) -> tuple[int, ...] | None:
        """Cores to pin a worker to on its current host; None for all."""
        del worker
        return None

    def failure(self, worker: int, *, stopped_s: float = STOPPED_S) -> Died | Silent | CutOff | None:
        """Failure of a worker's host, or None.

        Args:
            stopped_s: seconds that a host may be paused without counting as failed.
        """
        del worker, stopped_s
        return None

    def replace_failed(self, n_workers: int) -> Sequence[int]:
        """Replace failed hosts among the first `n_workers` and return their numbers; their actors are gone.

        Raises:
            ProvisionError: new ones cannot be started, or Ray itself has ended.
        """

    def mark_failed(self, worker: int) -> None:
        """Mark a host for replacement by the next `replace_failed`, after observations of other workers."""
        del worker

    def allow_writing(self, folder: Path) -> None:
        """Let workers write into a folder that the driver has made."""
        del folder

    def limit_links(self, limits: Limits) -> None:
        """Set the links' limits of the first workers, unless they are set already.

        Raises:
            ProvisionError: this host cannot limit links.
        """
        del limits


class Files(Protocol):
    """Transfer of files before and after processes use them."""

    def worker_path(self, path: Path) -> Path:
        """Path at which workers see a file or folder of the driver's."""

    def upload(self, n_workers: int, folders: Sequence[Path]) -> None:
        """Copy files of the driver and of other workers to the first workers, and make folders to write to.

        Args:
            folders: folders of the driver.
        Raises:
            WorkerFailure: files could not be copied to a worker.
        """

    def download(self, n_workers: int) -> None:
        """Fetch the first workers' files, if these are alive, for the driver and later workers."""


class SharedFiles:
    """Files of workers that see the driver's own file system."""

    def worker_path(self, path: Path) -> Path:
        return path.absolute()

    def upload(self, n_workers: int, folders: Sequence[Path]) -> None:
        """Do nothing: workers see the driver's files."""

    def download(self, n_workers: int) -> None:
        """Do nothing: the driver sees the workers' files."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WorkerSetup:
    """Host resources of one worker's actor, and settings of its processes.

    Attributes:
        resources: arguments of Ray's `options`, for the resources that it takes.
        environment: variables of its processes.
        folder: working directory of its processes; None for the actor's own.
        log: log of its fork server, on the driver. remote_log: path on the host of the worker, if another.
        host_log: log of the worker's host, if the provider keeps it after the host is removed.
        has_probe: True if other workers can test their connection to it.
    """

    resources: Mapping[str, object]
    environment: Mapping[str, str]
    log: Path
    remote_log: Path | None = None
    host_log: Path | None = None
    folder: Path | None = None
    has_probe: bool = False
