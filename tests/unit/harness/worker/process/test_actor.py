"""The actor, its fork server and forked processes, without Ray and without TensorFlow."""

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import actor_jobs
import pytest
from waiting import eventually

from harness.provision.temporary_folder import start_time
from harness.provision.worker_environment import process_variables
from harness.worker.process.actor import Worker, WorkerFacts
from harness.worker.process.forked_process import ForkedProcess
from harness.worker.process.messages import Died, JobAnswer, JobError, Reply, Silent, pack_job, unpack_answer

LONG_S = 60.0  # nothing takes so long that ends at all


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Worker]:
    monkeypatch.setenv("PYTHONPATH", str(Path(actor_jobs.__file__).parent))
    monkeypatch.setenv("RAY_SECRET", "x")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")  # as Ray does for an actor before it makes it
    path = {"LD_LIBRARY_PATH": "/pip/nvidia/cusolver/lib"}
    monkeypatch.setattr("harness.worker.process.actor.library_path", lambda environment: path)
    started = Worker(
        imports=("json",),
        cores=None,
        log_path=str(tmp_path / "fork-server.log"),
        environment={"READY": str(tmp_path / "ready"), **process_variables(tmp_path, "gpu", tmp_path)},
    )
    yield started
    facts = started.facts()
    if isinstance(facts, WorkerFacts):
        os.kill(facts.fork_server_pid, signal.SIGKILL)


@pytest.fixture
def pid(worker: Worker, tmp_path: Path) -> int:
    forked = worker.fork(str(tmp_path / "worker.log"))
    assert isinstance(forked, int)
    return forked


def result(reply: Reply) -> object:
    assert isinstance(reply, JobAnswer), reply
    return unpack_answer(reply.payload)


def test_the_zygote_has_one_thread(worker: Worker) -> None:
    facts = worker.facts()
    assert isinstance(facts, WorkerFacts)
    assert facts.n_fork_server_threads == 1


def test_packages_in_the_current_folder_are_not_ours(tmp_path: Path) -> None:
    users = tmp_path / "users"
    for name in ("harness", "strategies", "workloads"):
        (users / name).mkdir(parents=True)
        (users / name / "__init__.py").write_text("raise RuntimeError('of a user')\n")
    worker = Worker(
        imports=("strategies", "workloads"),
        cores=None,
        log_path=str(tmp_path / "fork-server.log"),
        environment=process_variables(tmp_path, "cpu", tmp_path),
        folder=str(users),
    )
    facts = worker.facts()
    assert isinstance(facts, WorkerFacts), (tmp_path / "fork-server.log").read_text()
    os.kill(facts.fork_server_pid, signal.SIGKILL)


def test_each_fork_is_another_process_with_the_given_environment(
    worker: Worker, pid: int, tmp_path: Path
) -> None:
    other = worker.fork(str(tmp_path / "worker.log"))
    assert isinstance(other, int)
    assert result(worker.call(pid, pack_job(actor_jobs.pid, ()), LONG_S)) == pid
    assert result(worker.call(other, pack_job(actor_jobs.pid, ()), LONG_S)) == other != pid
    assert result(worker.call(pid, pack_job(actor_jobs.environment, ("PYTHONUNBUFFERED",)), LONG_S)) == "1"
    assert result(worker.call(pid, pack_job(actor_jobs.environment, ("RAY_SECRET",)), LONG_S)) is None


def test_a_process_that_is_gone_before_it_is_known_can_be_let_go(
    worker: Worker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def process_gone(pid: int, pidfd: int, jobs: socket.socket, log_path: str) -> ForkedProcess:
        os.kill(pid, signal.SIGKILL)
        eventually(lambda: start_time(pid) is None, LONG_S, "its subreaper has reaped it")
        return ForkedProcess(pid, pidfd, jobs, log_path)

    monkeypatch.setattr("harness.worker.process.actor.ForkedProcess", process_gone)
    pid = worker.fork(str(tmp_path / "worker.log"))
    assert isinstance(pid, int)
    assert worker.call(pid, pack_job(actor_jobs.pid, ()), 5.0) == Died(what="process", exit_code=-9)
    assert worker.kill(pid)


def test_a_fork_finds_the_cuda_libraries_of_pip(worker: Worker, pid: int) -> None:
    job = pack_job(actor_jobs.environment, ("LD_LIBRARY_PATH",))
    assert result(worker.call(pid, job, LONG_S)) == "/pip/nvidia/cusolver/lib"


def test_a_fork_sees_the_gpus_that_ray_gave_the_actor(worker: Worker, pid: int) -> None:
    job = pack_job(actor_jobs.environment, ("CUDA_VISIBLE_DEVICES",))
    assert result(worker.call(pid, job, LONG_S)) == "3"


def test_an_unknown_job_is_an_error_and_the_process_lives_on(worker: Worker, pid: int) -> None:
    # As a worker whose code is older than the driver's would find it.
    job = pack_job(actor_jobs.pid, ()).replace(b"actor_jobs", b"older_jobs")
    error = result(worker.call(pid, job, LONG_S))
    assert isinstance(error, JobError)
    assert error.type == "ModuleNotFoundError"
    assert result(worker.call(pid, pack_job(actor_jobs.pid, ()), LONG_S)) == pid


def test_a_process_can_be_killed_while_it_is_awaited(worker: Worker, pid: int, tmp_path: Path) -> None:
    def kill() -> None:
        eventually((tmp_path / "ready").exists, LONG_S, "the job runs")
        assert worker.kill(pid)

    thread = threading.Thread(target=kill)
    thread.start()
    reply = worker.call(pid, pack_job(actor_jobs.sleep, (3600,)), LONG_S)
    thread.join()
    assert reply == Died(what="process", exit_code=-signal.SIGKILL)
    assert start_time(pid) is None
    assert worker.call(pid, pack_job(actor_jobs.pid, ()), LONG_S) == Died(what="process", exit_code=None)


def test_silence_is_told_and_stacks_are_logged(worker: Worker, pid: int, tmp_path: Path) -> None:
    job = pack_job(actor_jobs.sleep, (3600,))
    assert worker.call(pid, job, 0.3) == Silent(waited_s=0.3)
    # The first time may be over before the job sleeps.
    eventually((tmp_path / "ready").exists, LONG_S, "the job runs")
    assert worker.call(pid, job, 0.3) == Silent(waited_s=0.3)
    assert "in sleep" in (tmp_path / "worker.log").read_text()


def test_a_halted_process_is_given_up_long_before_its_time(
    worker: Worker, pid: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("harness.worker.process.forked_process.STOPPED_S", 0.2)
    assert result(worker.call(pid, pack_job(actor_jobs.pid, ()), LONG_S)) == pid
    os.kill(pid, signal.SIGSTOP)
    reply = worker.call(pid, pack_job(actor_jobs.pid, ()), 3600.0)
    assert isinstance(reply, Silent)
    assert reply.is_stopped
    assert reply.waited_s < 3600.0
    assert worker.kill(pid)


def test_a_process_that_goes_on_after_a_halt_answers(worker: Worker, pid: int) -> None:
    os.kill(pid, signal.SIGSTOP)
    threading.Timer(1.0, os.kill, (pid, signal.SIGCONT)).start()
    assert result(worker.call(pid, pack_job(actor_jobs.pid, ()), LONG_S)) == pid


def test_a_dead_zygote_takes_its_processes_along(worker: Worker, pid: int, tmp_path: Path) -> None:
    facts = worker.facts()
    assert isinstance(facts, WorkerFacts)
    os.kill(facts.fork_server_pid, signal.SIGKILL)
    assert worker.call(pid, pack_job(actor_jobs.sleep, (3600,)), LONG_S) == Died(
        what="fork server", exit_code=-9
    )
    assert worker.fork(str(tmp_path / "other.log")) == Died(what="fork server", exit_code=-9)
    eventually(lambda: start_time(pid) is None, LONG_S, "the process ends")


def test_a_fork_that_comes_when_nobody_waits_for_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late: list[int] = []

    def noted(pid: int, pidfd: int, jobs: socket.socket, log_path: str) -> ForkedProcess:
        late.append(pid)
        return ForkedProcess(pid, pidfd, jobs, log_path)

    monkeypatch.setattr("harness.worker.process.actor.ForkedProcess", noted)
    log = str(tmp_path / "log")
    started = Worker(imports=(), cores=None, log_path=log, environment={}, fork_s=0.2)
    facts = started.facts()
    assert isinstance(facts, WorkerFacts)
    try:
        os.kill(facts.fork_server_pid, signal.SIGSTOP)
        assert started.fork(log) == Silent(waited_s=0.2)
        os.kill(facts.fork_server_pid, signal.SIGCONT)
        eventually(lambda: len(late) == 1, LONG_S, "the fork comes")
        eventually(lambda: start_time(late[0]) is None, LONG_S, "it is killed")
    finally:
        os.kill(facts.fork_server_pid, signal.SIGKILL)


def test_no_other_process_is_killed_that_has_got_the_id(tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    with subprocess.Popen(["sleep", "3600"]) as other, theirs:
        with subprocess.Popen(["true"]) as ended:
            pidfd = os.pidfd_open(ended.pid)
        forked = ForkedProcess(other.pid, pidfd, ours, str(tmp_path / "log"))
        assert not forked.kill(0.0)
        other.terminate()
        assert other.wait() == -signal.SIGTERM
        forked.close()


def test_since_when_a_worker_is_ready_is_known(worker: Worker) -> None:
    before, after = worker.facts(), worker.facts()
    assert isinstance(before, WorkerFacts)
    assert isinstance(after, WorkerFacts)
    assert 0.0 <= before.ready_for_s < after.ready_for_s < LONG_S


def test_an_import_that_fails_ends_the_wait(tmp_path: Path) -> None:
    started = Worker(imports=("no_such_module",), cores=None, log_path=str(tmp_path / "log"), environment={})
    assert started.facts() == Died(what="fork server", exit_code=1)
    assert "no_such_module" in (tmp_path / "log").read_text()


def test_a_job_that_closes_its_outputs_or_interrupts_itself_is_answered(worker: Worker, pid: int) -> None:
    assert result(worker.call(pid, pack_job(actor_jobs.close_outputs, ()), 10.0)) is None
    error = result(worker.call(pid, pack_job(actor_jobs.interrupt, ()), 10.0))
    assert isinstance(error, JobError)
    assert (error.type, error.message) == ("KeyboardInterrupt", "of its own")
    assert result(worker.call(pid, pack_job(actor_jobs.pid, ()), 10.0)) == pid


@pytest.mark.parametrize("ends_itself", [False, True])
def test_what_a_job_has_started_ends_with_its_process(worker: Worker, pid: int, ends_itself: bool) -> None:
    sleeper = result(worker.call(pid, pack_job(actor_jobs.start_sleeper, ()), LONG_S))
    assert isinstance(sleeper, int)
    assert start_time(sleeper) is not None
    if ends_itself:
        os.kill(pid, signal.SIGTERM)
    else:
        assert worker.kill(pid)
    eventually(lambda: not is_running(sleeper), LONG_S, "what it has started is gone")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
