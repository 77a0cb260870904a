"""Processes of this machine for jobs that need no workers: their ends, and how these are told."""

import signal
from collections.abc import Iterator
from pathlib import Path

import actor_jobs
import pytest

from harness.provision import child_processes
from harness.provision.child_processes import LocalWorkers, child_process
from harness.provision.failures import WorkerFailure
from harness.provision.temporary_folder import run_folder, start_time
from harness.worker.process.messages import Died

# Nothing here takes as long; a test that hangs is ended before.
LONG_S = 3600.0


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("PYTHONPATH", str(Path(actor_jobs.__file__).parent))
    monkeypatch.setenv("READY", str(tmp_path / "ready"))
    with run_folder(tmp_path) as result:
        yield result


@pytest.mark.timeout(120)
def test_a_death_is_told_though_a_child_holds_the_channel(folder: Path) -> None:
    with child_process(folder) as process:
        for _ in range(2):  # whoever asks again is told again
            with pytest.raises(WorkerFailure) as caught:
                process.call(actor_jobs.exit_beside_a_child, (), timeout_s=LONG_S, stage="capture")
            assert caught.value.cause == Died(what="process", exit_code=3)


@pytest.mark.timeout(120)
def test_an_interrupt_ends_jobs_instead_of_waiting_for_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(child_processes, "wait", interrupt)
    logs = [folder / "0.log", folder / "1.log"]
    with LocalWorkers(folder=folder).open_session((0, 1), logs) as processes:
        pids = processes.pids
        with pytest.raises(KeyboardInterrupt):
            processes.call(actor_jobs.sleep, [(LONG_S,)] * 2, timeout_s=LONG_S)
    assert [start_time(pid) for pid in pids] == [None, None]


@pytest.mark.timeout(120)
def test_packages_in_the_current_folder_are_not_ours(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("harness", "strategies", "workloads"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise RuntimeError('of a user')\n")
    monkeypatch.chdir(tmp_path)
    with child_process(folder) as process:
        assert process.call(actor_jobs.pid, (), timeout_s=LONG_S, stage="capture")


@pytest.mark.timeout(120)
def test_a_process_that_is_killed_is_told_with_its_signal(folder: Path) -> None:
    with child_process(folder) as process:
        assert process.call(actor_jobs.pid, (), timeout_s=LONG_S, stage="capture")
        process.kill()
        with pytest.raises(WorkerFailure) as caught:
            process.call(actor_jobs.pid, (), timeout_s=LONG_S, stage="capture")
    assert caught.value.cause == Died(what="process", exit_code=-signal.SIGKILL)
