"""Several processes on this machine that work together, where real workers are needed and no provider is."""

from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from harness.provision.local.child_process import ChildProcess, child_process
from harness.provision.protocols import LOOPBACK
from harness.worker.process.job import Args, Job, Result


@dataclass(frozen=True, slots=True, kw_only=True)
class SoloWorkers:
    """Offers processes of their own.

    Attributes:
        folder: private one of this command.
        gpus: UUIDs of those of each worker; none on CPUs.
    """

    folder: Path
    gpus: Sequence[Sequence[str]] = ()

    @contextmanager
    def open_session(self, workers: Sequence[int], log_paths: Sequence[Path]) -> Iterator["ChildProcessSet"]:
        """Start processes; all of them are dead when the context ends."""
        assert len(log_paths) == len(workers)
        with ExitStack() as stack:
            gpus = self.gpus or [()] * len(log_paths)
            processes = [
                stack.enter_context(child_process(self.folder, log, gpus=own))
                for log, own in zip(log_paths, gpus, strict=True)
            ]
            yield ChildProcessSet(processes)


class ChildProcessSet:
    """Processes that work together; see `protocols.ProcessSet`."""

    def __init__(self, processes: Sequence[ChildProcess]) -> None:
        self._processes = tuple(processes)

    @property
    def pids(self) -> Sequence[int]:
        """Process ids in worker order."""
        return [process.pid for process in self._processes]

    @property
    def hosts(self) -> Sequence[str]:
        """Addresses in worker order at which the processes reach each other."""
        return [LOOPBACK] * len(self._processes)

    def call(
        self,
        job: Job[*Args, Result],
        per_worker_args: Sequence[tuple[*Args]],
        *,
        timeout_s: float,
        stage: str = "run",
    ) -> list[Result]:
        """Run a job in all processes at the same time; the first failure ends them all."""
        with ThreadPoolExecutor(len(self._processes)) as pool:
            calls = [
                pool.submit(partial(process.call, job, args, timeout_s=timeout_s, stage=stage))
                for process, args in zip(self._processes, per_worker_args, strict=True)
            ]
            try:
                done, _ = wait(calls, return_when=FIRST_EXCEPTION)
            except BaseException:
                # Interrupted: the pool would wait for answers before anybody hears of it.
                self._kill()
                raise
            failed = next((call for call in done if call.exception() is not None), None)
            if failed is not None:
                # The peers of one that failed may wait for it for ever.
                self._kill()
        return [call.result() for call in ([failed] if failed is not None else calls)]

    def _kill(self) -> None:
        for process in self._processes:
            process.kill()

    def call_one(
        self,
        worker: int,
        job: Job[*Args, Result],
        args: tuple[*Args],
        *,
        timeout_s: float,
        stage: str = "run",
    ) -> Result:
        """Run a job in one process."""
        return self._processes[worker].call(job, args, timeout_s=timeout_s, stage=stage)
