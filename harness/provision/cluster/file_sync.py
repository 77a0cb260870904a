"""Files of a run without a common file system: they are copied through Ray when sessions begin and end.

Every node has the run's folder at the same path. In it, `scratch` holds files of workers for each other, and
`tree` holds folders of the driver under their own paths: those of a user's files, and those for logs and
checkpoints. Files of one node for the others are in Ray's object store.
"""

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import ray
from ray.exceptions import RayError

from harness.errors import CaseError
from harness.provision.cluster import file_archives
from harness.provision.cluster.file_archives import Listing, Stamp
from harness.provision.cluster.hosts import NodeAgentHandle
from harness.provision.failures import Awaited, ProvisionError, failure_of
from harness.worker.process.messages import Died

SCRATCH, TREE = "scratch", "tree"
MAX_SHIPPED_BYTES = 256 * 2**20
_TRAVEL_S = 300.0


@dataclass(frozen=True, kw_only=True, slots=True)
class _Archive:
    """Files in Ray's object store."""

    content: ray.ObjectRef
    files: Listing


class SyncedFiles:
    """Transfers files of one run; see `harness.provision.ray.actors.Files`.

    Args:
        folder: the run's folder on every node.
        agents: returns the agents of the first workers' nodes, by the number of one worker on each node.
        writes: folders of the driver that workers write to.
        secrets: files that stay with the driver, whatever their folder.
        call: makes a call to Ray; it raises ConnectionError if Ray has ended.
    """

    def __init__(
        self,
        folder: Path,
        agents: Callable[[int], Mapping[int, NodeAgentHandle]],
        writes: Sequence[Path],
        secrets: Sequence[Path],
        call: Callable[[Callable[[], object]], object],
    ) -> None:
        self._call = call
        self._folder = folder
        self._agents = agents
        self._writes = tuple(tree_name(path) for path in writes)
        self._secrets = frozenset(path.resolve() for path in secrets)
        self._archives: list[_Archive] = []
        self._known: dict[str, Stamp] = {}
        self._fetched: dict[str, Stamp] = {}

    def worker_path(self, path: Path) -> Path:
        return path if path.is_relative_to(self._folder) else self._folder / tree_name(path)

    def upload_user_files(self, folders: Sequence[Path]) -> None:
        """Copy a user's folders to the workers, as they are now.

        Raises:
            ProvisionError: they are too large to send.
        """
        files = {tree_name(path): path for folder in folders for path in self._of_user(folder)}
        stamps = {
            name: Stamp(n_bytes=facts.st_size, changed_ns=facts.st_mtime_ns)
            for name, facts in ((name, path.stat()) for name, path in files.items())
        }
        total_bytes = sum(stamp.n_bytes for stamp in stamps.values())
        if total_bytes > MAX_SHIPPED_BYTES:
            raise ProvisionError(
                f"cluster: the folders of a user's files travel to the workers and may have "
                f"{MAX_SHIPPED_BYTES >> 20} MiB, got {total_bytes >> 20} MiB in "
                f"{', '.join(map(str, folders))}; move the files into a folder of their own"
            )
        if files:
            self._call(lambda: self._keep(ray.put(file_archives.pack(files)), stamps))

    def upload(self, n_workers: int, folders: Sequence[Path]) -> None:
        started_s = time.monotonic()
        try:
            self._call(lambda: self._upload(n_workers, folders, started_s))
        except ConnectionError as error:
            raise _without_node(0, started_s) from error

    def _upload(self, n_workers: int, folders: Sequence[Path], started_s: float) -> None:
        agents = self._agents(n_workers)
        names = [str(self.worker_path(path).relative_to(self._folder)) for path in folders]
        listings = {worker: agent.present.remote([SCRATCH, TREE]) for worker, agent in agents.items()}
        sent = {worker: [agent.make.remote(names)] for worker, agent in agents.items()}
        for worker, reference in listings.items():
            present = self._awaited(worker, reference, started_s)
            assert isinstance(present, dict)
            for archive in self._archives:
                lacking = [
                    name
                    for name, stamp in archive.files.items()
                    if self._known.get(name) == stamp != present.get(name)
                ]
                if lacking:
                    sent[worker].append(agents[worker].unpack.remote(archive.content, lacking))
        for worker, references in sent.items():
            for reference in references:
                self._awaited(worker, reference, started_s)

    def download(self, n_workers: int) -> None:
        """Store files that the first workers' nodes have written, and fetch those for the driver."""
        for agent in self._agents(n_workers).values():
            # A lost node took its files with it; the failure of its case reports that.
            with contextlib.suppress(RayError, ConnectionError):
                self._call(partial(self._download, agent))

    def _download(self, agent: NodeAgentHandle) -> None:
        present: Listing = ray.get(agent.present.remote([SCRATCH, *self._writes]), timeout=_TRAVEL_S)
        fresh = {name: stamp for name, stamp in present.items() if self._known.get(name) != stamp}
        scratch = {name: stamp for name, stamp in fresh.items() if name.startswith(f"{SCRATCH}/")}
        if scratch:
            # The head stores it, not the node that wrote it, which may be lost before others have read it.
            self._keep(ray.put(ray.get(agent.pack.remote(list(scratch)), timeout=_TRAVEL_S)), scratch)
        due = {n: s for n, s in fresh.items() if n not in scratch and self._fetched.get(n) != s}
        if due:
            archive = ray.get(agent.pack.remote(list(due)), timeout=_TRAVEL_S)
            file_archives.unpack(archive, Path("/"), due, below=f"{TREE}/")
            self._fetched.update(due)

    def _keep(self, content: ray.ObjectRef, files: Listing) -> None:
        self._known.update(files)
        self._archives.append(_Archive(content=content, files=files))
        # An archive is useless once every file in it has a newer version.
        self._archives = [
            archive
            for archive in self._archives
            if any(self._known[name] == stamp for name, stamp in archive.files.items())
        ]

    def _of_user(self, folder: Path) -> list[Path]:
        return [
            path
            for path in sorted(folder.rglob("*"))
            if path.is_file()
            and path.resolve() not in self._secrets
            and not any(
                part.startswith(".") or part == "__pycache__" for part in path.relative_to(folder).parts
            )
            and not tree_name(path).startswith(tuple(f"{name}/" for name in self._writes))
        ]

    @staticmethod
    def _awaited(worker: int, reference: ray.ObjectRef, started_s: float) -> object:
        left_s = max(0.0, started_s + _TRAVEL_S - time.monotonic())
        try:
            return ray.get(reference, timeout=left_s)
        except (RayError, ConnectionError) as error:
            raise _without_node(worker, started_s) from error


def _without_node(worker: int, started_s: float) -> CaseError:
    waited_s = time.monotonic() - started_s
    awaited = Awaited(worker=worker, what="taking its files", waited_s=waited_s, log=None, stage="provision")
    return failure_of(Died(what="node", exit_code=None), awaited)


def tree_name(path: Path) -> str:
    """Path of a driver's file or folder below the run's folder on a node."""
    return f"{TREE}{path.absolute().as_posix()}"
