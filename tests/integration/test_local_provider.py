"""The local provider: what it starts, how its workers fail, and that nothing is left."""

import functools
import os
import signal
import stat
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import probe_jobs
import pytest
from processes import descendants, of_process, process_ids, program, session
from waiting import eventually, is_waiting

from harness.cluster import ClusterShape
from harness.errors import CaseError
from harness.provision import local
from harness.provision.failures import WorkerFailure
from harness.provision.protocols import Cluster, ProcessSet, StartOptions
from harness.provision.temporary_folder import processes_of, start_time
from harness.worker.process.job import Job
from harness.worker.process.os_process import RUN_FOLDER_VARIABLE

pytestmark = pytest.mark.ray

HERE = Path(__file__).parent
LONG_S = 120.0  # no job takes so long that ends at all, on whatever machine
NEVER_S = 3600.0  # longer than a test may take: what a call returns within it, it did not wait for


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(HERE))
        patch.setenv("HOME", str(home))
        patch.setenv("RAY_ADDRESS", "127.0.0.1:1")  # another cluster, never to be joined
        logs = tmp_path_factory.mktemp("logs")
        options = StartOptions(imports=("json",))
        with local.start(ClusterShape(workers=2), "test", logs, options) as started:
            yield started
            folder = Path(os.environ[RUN_FOLDER_VARIABLE])
            assert processes_of(folder)
        assert not folder.exists()
        assert processes_of(folder) == ()
        assert os.environ["RAY_ADDRESS"] == "127.0.0.1:1"
        assert "RAY_AUTH_TOKEN_PATH" not in os.environ
        assert list(home.iterdir()) == []


@pytest.fixture
def processes(cluster: Cluster, tmp_path: Path) -> Iterator[ProcessSet]:
    with cluster.open_session(range(2), [tmp_path / f"worker-{k}.log" for k in range(2)]) as opened:
        yield opened


def kill_when_waiting(pid: int, log: Path) -> threading.Thread:
    def wait_and_kill() -> None:
        eventually(lambda: is_waiting(log), LONG_S, "the job runs")
        os.kill(pid, signal.SIGKILL)

    thread = threading.Thread(target=wait_and_kill)
    thread.start()
    return thread


def is_dead(pid: int) -> bool:
    return start_time(pid) is None


class TestJobs:
    def test_results_come_in_worker_order(self, processes: ProcessSet) -> None:
        assert processes.call(probe_jobs.add, [(1, 2), (3, 4)], timeout_s=LONG_S) == [3, 7]
        assert processes.call_one(1, probe_jobs.add, (5, 6), timeout_s=LONG_S) == 11

    def test_a_process_keeps_what_jobs_leave_and_the_next_one_has_none_of_it(
        self, cluster: Cluster, tmp_path: Path
    ) -> None:
        for _ in range(2):
            with cluster.open_session(range(1), [tmp_path / "worker-0.log"]) as opened:
                assert opened.call(probe_jobs.remember, [(1,)], timeout_s=LONG_S) == [None]
                assert opened.call(probe_jobs.remember, [(2,)], timeout_s=LONG_S) == [1]

    def test_large_values_travel_both_ways(self, processes: ProcessSet) -> None:
        value = os.urandom(30_000_000)
        assert processes.call_one(0, probe_jobs.echo, (value,), timeout_s=LONG_S) == value

    def test_processes_are_pinned_to_cores_of_their_own(
        self, cluster: Cluster, processes: ProcessSet
    ) -> None:
        if not cluster.facts().of_case(ClusterShape(workers=2)).pinned:
            pytest.skip("fewer than two cores")
        first, second = processes.call(probe_jobs.affinity, [(), ()], timeout_s=LONG_S)
        assert isinstance(first, set)
        assert isinstance(second, set)
        assert len(first) == len(second) == 1
        assert not first & second

    def test_one_alone_can_be_on_any_worker(
        self, cluster: Cluster, processes: ProcessSet, tmp_path: Path
    ) -> None:
        with cluster.open_session([1], [tmp_path / "alone.log"]) as alone:
            assert alone.pids != processes.pids[1:]
            both = processes.call_one(1, probe_jobs.affinity, (), timeout_s=LONG_S)
            assert alone.call(probe_jobs.affinity, [()], timeout_s=LONG_S) == [both]
            with pytest.raises(WorkerFailure, match="worker 0: fail raised"):
                alone.call_one(0, probe_jobs.fail, (), timeout_s=LONG_S)
        assert is_dead(alone.pids[0])

    def test_output_goes_to_the_log_only(
        self, processes: ProcessSet, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        processes.call(probe_jobs.speak, [("first",), ("second",)], timeout_s=LONG_S)
        assert (tmp_path / "worker-1.log").read_text().split() == ["second", "second"]
        assert capfd.readouterr() == ("", "")

    def test_a_process_inherits_no_descriptor(self, processes: ProcessSet) -> None:
        (descriptors, _) = processes.call(probe_jobs.descriptors, [(), ()], timeout_s=LONG_S)
        assert isinstance(descriptors, list)
        sockets = [name for name in descriptors if name.startswith("socket:")]
        others = [name for name in descriptors if not name.startswith("socket:")]
        assert len(sockets) == 1
        assert all(name == "/dev/null" or name.endswith("worker-0.log") for name in others)

    def test_the_token_is_private_and_stays_out_of_the_workers(self, processes: ProcessSet) -> None:
        token = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
        assert stat.S_IMODE(token.stat().st_mode) == 0o400
        assert stat.S_IMODE(token.parent.stat().st_mode) == 0o700
        (seen, _) = processes.call(probe_jobs.environment, [(), ()], timeout_s=LONG_S)
        assert isinstance(seen, dict)
        assert not [name for name in seen if name.startswith("RAY_")]
        for pid in processes_of(token.parent):
            for name in ("environ", "cmdline"):
                assert token.read_bytes() not in of_process(pid, name)


class TestFailures:
    def test_an_exception_crosses_as_text(self, processes: ProcessSet) -> None:
        with pytest.raises(WorkerFailure) as caught:
            processes.call(probe_jobs.fail, [(), ()], timeout_s=LONG_S)
        assert str(caught.value) == "worker 0: fail raised LinAlgError: singular"
        assert caught.value.kind == "worker-error"
        assert "probe_jobs.py" in caught.value.__notes__[0]

    def test_a_case_error_keeps_its_kind_and_stage(self, processes: ProcessSet) -> None:
        with pytest.raises(CaseError) as caught:
            processes.call(probe_jobs.fail_as_case, [(), ()], timeout_s=LONG_S)
        assert (caught.value.kind, caught.value.stage) == ("non-finite-loss", "collect")

    def test_a_result_that_cannot_travel_is_an_error(self, processes: ProcessSet) -> None:
        with pytest.raises(WorkerFailure, match="return_unpicklable raised"):
            processes.call_one(0, probe_jobs.return_unpicklable, (), timeout_s=LONG_S)

    @pytest.mark.parametrize("job", [probe_jobs.wait_for_ever, probe_jobs.wait_beside_a_grandchild])
    def test_a_killed_process_is_noticed_and_its_peer_is_killed(
        self, processes: ProcessSet, tmp_path: Path, job: Job[None]
    ) -> None:
        thread = kill_when_waiting(processes.pids[1], tmp_path / "worker-1.log")
        with pytest.raises(
            WorkerFailure, match=r"worker 1: its process was killed by SIGKILL .* into wait"
        ) as caught:
            processes.call(job, [(), ()], timeout_s=NEVER_S)
        thread.join()
        assert "waiting for ever" in caught.value.__notes__[0]
        assert all(is_dead(pid) for pid in processes.pids)

    def test_an_exit_status_is_told(self, processes: ProcessSet) -> None:
        with pytest.raises(WorkerFailure, match="worker 0: its process ended with exit status 7"):
            processes.call_one(0, probe_jobs.exit_with, (7,), timeout_s=LONG_S)

    def test_a_peer_that_fails_ends_the_wait_for_the_others(self, processes: ProcessSet) -> None:
        with pytest.raises(WorkerFailure, match="worker 1: fail_unless_first raised RuntimeError"):
            processes.call(probe_jobs.fail_unless_first, [(0,), (1,)], timeout_s=NEVER_S)

    def test_silence_ends_with_the_stacks_in_a_note(self, processes: ProcessSet) -> None:
        processes.call(probe_jobs.add, [(1, 2), (3, 4)], timeout_s=LONG_S)  # has imported the jobs by then
        with pytest.raises(WorkerFailure, match=r"no answer from wait_for_ever within 2\.0 s") as caught:
            processes.call(probe_jobs.wait_for_ever, [(), ()], timeout_s=2.0)
        assert caught.value.kind == "unresponsive"
        assert "wait_for_ever" in caught.value.__notes__[0]
        assert all(is_dead(pid) for pid in processes.pids)

    @pytest.mark.parametrize("victim", ["fork server", "actor"])
    def test_a_killed_zygote_or_actor_is_noticed_and_replaced(
        self, cluster: Cluster, tmp_path: Path, victim: str, capfd: pytest.CaptureFixture[str]
    ) -> None:
        logs = [tmp_path / f"worker-{k}.log" for k in range(2)]
        facts = cluster.wait_ready(2)[1]
        with cluster.open_session(range(2), logs) as opened:
            pid = facts.fork_server_pid if victim == "fork server" else facts.pid
            thread = kill_when_waiting(pid, logs[1])
            with pytest.raises(WorkerFailure, match=f"worker 1: its {victim}"):
                opened.call(probe_jobs.wait_for_ever, [(), ()], timeout_s=NEVER_S)
            thread.join()
            for left in (facts.fork_server_pid, *opened.pids):
                eventually(functools.partial(is_dead, left), LONG_S, f"{left} ends")
        with cluster.open_session(range(2), logs) as opened:
            assert opened.call(probe_jobs.add, [(1, 2), (3, 4)], timeout_s=LONG_S) == [3, 7]
        assert capfd.readouterr() == ("", ""), "Ray must not write to the terminal"


AGENTS = {"ray::DashboardAgent", "ray::RuntimeEnvAgent"}
DRIVER = """
    import sys
    from pathlib import Path
    import probe_jobs
    from harness.cluster import ClusterShape
    from harness.provision import local
    from harness.provision.protocols import StartOptions

    logs = Path(sys.argv[1])
    options = StartOptions(imports=("json",))
    with local.start(ClusterShape(workers=2), "test", logs, options) as cluster:
        with cluster.open_session(range(2), [logs / f"worker-{k}.log" for k in range(2)]) as processes:
            processes.call(probe_jobs.wait_for_ever, [(), ()], timeout_s=600)
"""


def halt_agents(driver: int) -> None:
    """Wait until Ray's agents have overwritten their variables, and keep them from noticing an end."""

    def agents() -> dict[str, int]:
        return {program(pid): pid for pid in descendants(driver) if program(pid) in AGENTS}

    eventually(lambda: agents().keys() == AGENTS, LONG_S, "Ray's agents set their titles")
    for pid in agents().values():
        os.kill(pid, signal.SIGSTOP)


def test_a_termination_is_heard_when_ray_has_ended(tmp_path: Path) -> None:
    script = """
        import signal, sys
        from pathlib import Path
        from harness.provision.local import own_ray
        from harness.provision.temporary_folder import run_folder

        signal.signal(signal.SIGTERM, lambda *_: print("heard"))
        with run_folder() as folder, own_ray(folder, n_actors=1, log_path=Path(sys.argv[1])):
            pass
        signal.raise_signal(signal.SIGTERM)
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(tmp_path / "ray.log")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (0, "heard\n"), ended.stderr


class TestDeadDriver:
    @pytest.fixture
    def driver(self, tmp_path: Path) -> Iterator[tuple["subprocess.Popen[bytes]", Path]]:
        temporary = Path(tempfile.mkdtemp(prefix="sb", dir="/tmp"))  # sockets need a short name
        # Few enough that Ray's agents, when they set their titles, overwrite all of them.
        environment = {
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(HERE),
            "TMPDIR": str(temporary),
            "HOME": str(tmp_path),
        }
        with (tmp_path / "output").open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-c", textwrap.dedent(DRIVER), str(tmp_path / "logs")],
                env=environment,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            for worker in range(2):
                log = tmp_path / "logs" / f"worker-{worker}.log"
                eventually(functools.partial(is_waiting, log), LONG_S, "the jobs run")
            (folder,) = temporary.glob("stratbench-*")
            yield process, folder
        finally:
            process.kill()
            process.wait()
            for pid in process_ids():
                if session(pid) == process.pid:
                    os.kill(pid, signal.SIGKILL)
            eventually(lambda: not any(temporary.iterdir()), LONG_S, "the folder is removed")
            temporary.rmdir()

    def test_a_killed_driver_leaves_no_process_and_no_folder(
        self, driver: tuple["subprocess.Popen[bytes]", Path]
    ) -> None:
        process, folder = driver
        halt_agents(process.pid)
        started = {pid: start_time(pid) for pid in descendants(process.pid)}
        assert started.keys() >= set(processes_of(folder))
        process.kill()
        process.wait()
        for pid, start in started.items():
            eventually(lambda pid=pid, start=start: start_time(pid) != start, 30.0, f"{pid} ends")
        eventually(lambda: not folder.exists(), 30.0, "the folder is removed")

    def test_ctrl_c_ends_everything_quickly_and_quietly(
        self, driver: tuple["subprocess.Popen[bytes]", Path], tmp_path: Path
    ) -> None:
        process, folder = driver
        halt_agents(process.pid)
        started = {pid: start_time(pid) for pid in descendants(process.pid)}
        os.killpg(process.pid, signal.SIGINT)
        process.wait(timeout=60.0)
        assert [pid for pid, start in started.items() if start_time(pid) == start] == []
        assert not folder.exists()
        output = (tmp_path / "output").read_text()
        assert output.count("Traceback") == 1, output
        assert output.rstrip().endswith("KeyboardInterrupt")
        assert "Traceback" not in "".join(log.read_text() for log in (tmp_path / "logs").iterdir())

    def test_the_end_of_ray_itself_is_a_typed_error(
        self, driver: tuple["subprocess.Popen[bytes]", Path], tmp_path: Path
    ) -> None:
        process, folder = driver
        (raylet,) = (pid for pid in processes_of(folder) if program(pid) == "raylet")
        os.kill(raylet, signal.SIGKILL)
        process.wait(timeout=60.0)
        output = (tmp_path / "output").read_text().strip()
        assert "WorkerFailure: worker 0: its Ray node ended" in output
        assert "Raylet is terminated" not in output
        assert not folder.exists()
