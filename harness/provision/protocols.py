"""Interfaces of every provider: workers for all cases of a run, and new processes for each case."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from harness.provision.network_namespace import NOT_ASKED
from harness.provision.worker_environment import WORKER_IMPORTS
from harness.records.record import CORES_SHARED

if TYPE_CHECKING:
    from harness.cluster import ClusterShape, Limits
    from harness.records.conditions import Machine
    from harness.worker.process.actor import WorkerFacts
    from harness.worker.process.job import Args, Job, Result

LOOPBACK = "127.0.0.1"


class ProcessSet(Protocol):
    """One new process on each of some workers of a cluster; unusable after a failure."""

    @property
    def pids(self) -> Sequence[int]:
        """Process ids in worker order, from the worker's host."""

    @property
    def hosts(self) -> Sequence[str]:
        """Addresses in worker order at which the processes reach each other."""

    def call(
        self,
        job: Job[*Args, Result],
        per_worker_args: Sequence[tuple[*Args]],
        *,
        timeout_s: float,
        stage: str = "run",
    ) -> list[Result]:
        """Run `job(state, *args)` in all processes at the same time.

        Args:
            per_worker_args: one tuple for each process.
            stage: stage to report for a failure.
        Returns:
            One result for each process.
        Raises:
            WorkerFailure, CaseError: the most informative failure; by then, every process of
                the set has been killed, because peers of a dead worker could wait forever.
        """

    def call_one(
        self,
        worker: int,
        job: Job[*Args, Result],
        args: tuple[*Args],
        *,
        timeout_s: float,
        stage: str = "run",
    ) -> Result:
        """Run a job in one process; errors as for `call`."""


class ProcessSource(Protocol):
    """Source of fresh processes."""

    def open_session(
        self, workers: Sequence[int], log_paths: Sequence[Path]
    ) -> AbstractContextManager[ProcessSet]:
        """Fork a new process on each of some workers; all of them are dead when the context ends.

        Args:
            workers: numbers in the cluster, in rising order; within the set, workers are counted from 0.
            log_paths: files for the output, one for each process.
        Raises:
            WorkerFailure: a worker cannot be started.
        """


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterFacts:
    """Facts about the workers of repeats; None if no workers were started.

    Attributes:
        notes: notes on these workers, for records and reports.
        pinned: True if each worker has cores of its own.
        n_cores: cores that the workers have together; None if `pinned` does not depend on
            the workers in use.
        exposed: False if no other program can reach the workers' servers or use their interfaces.
        provision_s: seconds from the start until the last worker was ready for the first time; None before.
        image_digest: id of the image of the workers' containers.
        machine: host of the first worker; None if it is the driver's. clock_hz: highest clock of its cores.
    """

    notes: tuple[str, ...] = ()
    pinned: bool | None = None
    n_cores: int | None = None
    exposed: bool | None = None
    provision_s: float | None = None
    image_digest: str | None = None
    machine: Machine | None = None
    clock_hz: float | None = None

    def of_case(self, shape: ClusterShape) -> ClusterFacts:
        """Facts about the workers of a case, while any others are idle."""
        if self.n_cores is None:
            return self
        n_wanted = shape.workers * shape.cores_per_worker
        is_pinned = n_wanted <= self.n_cores
        note = f"{CORES_SHARED}: {n_wanted} cores wanted, {self.n_cores} available"
        return replace(self, notes=self.notes if is_pinned else (note, *self.notes), pinned=is_pinned)


class Cluster(ProcessSource, Protocol):
    """Workers that serve all cases of a run."""

    def facts(self) -> ClusterFacts:
        """Current facts about the workers; a lost host may have been replaced."""

    @property
    def scratch(self) -> Path:
        """Folder for files between workers, which all of them see; removed with the cluster."""

    def worker_path(self, path: Path) -> Path:
        """Path at which workers see a file or folder of the driver's."""

    def limit_links(self, limits: Limits) -> None:
        """Limit the workers' links, in worker order, in all sessions from now on.

        A session raises ProvisionError if its links cannot be limited.
        """

    def wait_ready(self, n_workers: int) -> Sequence[WorkerFacts]:
        """Wait until the first `n_workers` can fork; dead workers are replaced.

        Raises:
            WorkerFailure: a worker cannot be started.
        """


@dataclass(frozen=True, kw_only=True, slots=True)
class StartOptions:
    """Settings for each start of workers.

    Attributes:
        imports: modules that each worker's fork server imports before it forks.
        preload_s: time limit of those imports, once the worker's host runs. fork_s: time limit of a fork.
        exposure: reason why the network can reach this process's ports; None if it cannot.
    """

    imports: tuple[str, ...] = WORKER_IMPORTS
    preload_s: float = 120.0
    fork_s: float = 30.0
    exposure: str | None = NOT_ASKED


USUAL_START = StartOptions()


class Provider(Protocol):
    """A kind of place for workers; implemented by a module, see `registry`."""

    def require(self, shape: ClusterShape) -> None:
        """Check, before any start, that such workers can run here.

        Raises:
            ProvisionError: such workers cannot run here; the message says why.
        """

    def start(
        self,
        shape: ClusterShape,
        run_id: str,
        log_dir: Path,
        options: StartOptions = USUAL_START,
        *,
        reads: Sequence[Path] = (),
        writes: Sequence[Path] = (),
    ) -> AbstractContextManager[Cluster]:
        """Start workers; they and their files are removed when the context ends.

        The calling thread must live as long as the context: when it ends, the kernel ends the workers.

        Args:
            reads: folders of the user that workers read. writes: existing folders that they write to.
        Raises:
            ProvisionError: they cannot be started here.
        """
