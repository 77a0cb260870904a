"""Ends of what a workload's code leaves: processes that hide, and shared memory."""

import os
import signal
from collections.abc import Callable, Iterator
from multiprocessing import shared_memory
from pathlib import Path

import actor_jobs
import pytest
from processes import parent, status
from waiting import eventually

from harness.provision.child_processes import ChildProcess, child_process
from harness.provision.temporary_folder import end_processes, run_folder, start_time
from harness.provision.worker_environment import process_variables
from harness.worker.process.actor import Worker, WorkerFacts
from harness.worker.process.messages import JobAnswer, pack_job, unpack_answer

LONG_S = 60.0
MEMORY = Path("/dev/shm")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("PYTHONPATH", str(Path(actor_jobs.__file__).parent))
    with run_folder(tmp_path) as result:
        yield result


@pytest.fixture
def worker(folder: Path) -> Iterator[Worker]:
    environment = process_variables(folder, "cpu", folder)
    started = Worker(
        imports=(), cores=None, log_path=str(folder / "fork-server.log"), environment=environment
    )
    yield started
    facts = started.facts()
    if isinstance(facts, WorkerFacts):
        os.kill(facts.fork_server_pid, signal.SIGKILL)


@pytest.fixture
def pid(worker: Worker, folder: Path) -> int:
    forked = worker.fork(str(folder / "worker.log"))
    assert isinstance(forked, int), (folder / "fork-server.log").read_text()
    return forked


@pytest.fixture
def others_memory() -> Iterator[shared_memory.SharedMemory]:
    """Another program's, which is made while a watch goes on and is not held by anybody."""
    memory = shared_memory.SharedMemory(create=True, size=4096)
    memory.close()
    yield memory
    memory.unlink()


def of_worker(worker: Worker, pid: int, job: Callable[..., object], *args: object) -> object:
    reply = worker.call(pid, pack_job(job, args), LONG_S)
    assert isinstance(reply, JobAnswer), reply
    # The kernel wakes the subreaper as soon as there is a new name.
    eventually(lambda: status(parent(pid))[0] == "S", LONG_S, "the subreaper has looked who holds it")
    return unpack_answer(reply.payload)


def kill(worker: Worker, pid: int, folder: Path) -> None:
    assert worker.kill(pid)


def crash(worker: Worker, pid: int, folder: Path) -> None:
    os.kill(pid, signal.SIGSEGV)


def kill_zygote(worker: Worker, pid: int, folder: Path) -> None:
    facts = worker.facts()
    assert isinstance(facts, WorkerFacts)
    os.kill(facts.fork_server_pid, signal.SIGKILL)


def end_run(worker: Worker, pid: int, folder: Path) -> None:
    end_processes(folder)


@pytest.mark.parametrize("end", [kill, crash, kill_zygote, end_run])
def test_what_hides_and_its_memory_end_with_the_process(
    worker: Worker,
    pid: int,
    folder: Path,
    others_memory: shared_memory.SharedMemory,
    end: Callable[[Worker, int, Path], None],
) -> None:
    daemon = of_worker(worker, pid, actor_jobs.start_daemon, True)
    assert isinstance(daemon, int)
    path = MEMORY / f"stratbench-test-{pid}-daemon"
    assert path.exists()
    tracked = of_worker(worker, pid, actor_jobs.make_memory, True)
    untracked = of_worker(worker, pid, actor_jobs.make_memory, False)
    semaphore = of_worker(worker, pid, actor_jobs.make_semaphore)
    end(worker, pid, folder)
    eventually(lambda: start_time(daemon) is None, LONG_S, "the daemon is gone")
    results = {path, *(MEMORY / str(name) for name in (tracked, untracked, semaphore))}
    eventually(lambda: results.isdisjoint(MEMORY.iterdir()), LONG_S, "its shared memory is gone")
    assert (MEMORY / others_memory.name).exists()


def test_files_and_memory_that_somebody_uses_stay(worker: Worker, pid: int) -> None:
    cache = MEMORY / f"stratbench-test-{pid}-cache"
    of_worker(worker, pid, actor_jobs.write_cache, str(cache))
    unused, used = (str(of_worker(worker, pid, actor_jobs.make_memory, False)) for _ in range(2))
    memory = shared_memory.SharedMemory(used)
    try:
        assert worker.kill(pid)
        assert cache.exists()
        assert (MEMORY / used).exists()
        assert not (MEMORY / unused).exists()
    finally:
        memory.close()
        memory.unlink()
        cache.unlink()


def test_a_process_beside_it_keeps_what_it_has_started(worker: Worker, pid: int, folder: Path) -> None:
    other = worker.fork(str(folder / "other.log"))
    assert isinstance(other, int)
    ended, left = (of_worker(worker, pid_of, actor_jobs.start_daemon, False) for pid_of in (pid, other))
    assert isinstance(ended, int)
    assert isinstance(left, int)
    memory = of_worker(worker, other, actor_jobs.make_memory, False)
    assert worker.kill(pid)
    assert start_time(ended) is None
    assert start_time(left) is not None
    assert (MEMORY / str(memory)).exists()
    assert worker.kill(other)
    assert start_time(left) is None
    assert not (MEMORY / str(memory)).exists()


def test_what_hides_ends_with_a_process_that_needs_no_worker(folder: Path) -> None:
    def call(process: ChildProcess, job: Callable[..., object], *args: object) -> object:
        return process.call(job, args, timeout_s=LONG_S, stage="capture")

    with child_process(folder) as process:
        daemon = call(process, actor_jobs.start_daemon, True)
        memory = call(process, actor_jobs.make_memory, False)
    assert isinstance(daemon, int)
    assert start_time(daemon) is None
    assert not (MEMORY / str(memory)).exists()
