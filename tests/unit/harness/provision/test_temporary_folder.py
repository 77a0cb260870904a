""" """

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
from git_repository import Repository
from waiting import eventually

from harness.errors import MissingError
from harness.provision.temporary_folder import (
    RUN_FOLDER_VARIABLE,
    _environment,
    dead_folders,
    end_processes,
    owned,
    processes_of,
    reap,
    run_folder,
    start_time,
)
from harness.provision.worktrees import new_worktree

WAIT_S = 60.0


def sleeper(folder: Path) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(["sleep", "3600"], env={**os.environ, RUN_FOLDER_VARIABLE: str(folder)})


@contextmanager
def writer(folder: Path, mode: str) -> Iterator["subprocess.Popen[bytes]"]:
    """A process of a session of its own that has the run's log open and no variables at all.

    What Ray's agents leave of theirs, once they have set their titles, is no more.
    """
    with (folder / "ray.log").open(mode) as log:
        process = subprocess.Popen(
            ["/bin/sleep", "3600"], env={}, stdin=log, stdout=subprocess.DEVNULL, start_new_session=True
        )
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def dead_folder(base: Path, **changes: object) -> Path:
    folder = base / "stratbench-dead"
    folder.mkdir()
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = str(Path("/proc/self/ns/pid").readlink())
    owner = {"pid": os.getpid(), "started": 1, "boot": boot, "pid_namespace": namespace}
    (folder / "owner.json").write_text(json.dumps(owner | changes))
    return folder


def test_a_folder_is_private_and_goes_with_what_runs_in_its_name(tmp_path: Path) -> None:
    with run_folder(tmp_path) as folder:
        assert folder.stat().st_mode & 0o777 == 0o700
        assert reap(tmp_path) == ()
        left = sleeper(folder)
    assert left.wait(WAIT_S) == -9
    assert not folder.exists()


def test_a_dead_runs_folder_and_processes_are_removed_and_others_are_not(tmp_path: Path) -> None:
    folder, other = dead_folder(tmp_path), tmp_path / "stratbench-fresh"
    other.mkdir()
    left, unrelated = sleeper(folder), sleeper(other)
    try:
        assert reap(tmp_path) == (folder,)
        assert left.wait(WAIT_S) == -9
        assert other.exists()
        assert unrelated.poll() is None
    finally:
        unrelated.kill()
        unrelated.wait()


def test_a_dead_runs_worktree_leaves_no_entry_in_its_repository(tmp_path: Path) -> None:
    folder, repository = dead_folder(tmp_path), Repository(tmp_path / "checkout")
    repository.commit("first")
    repository.git("worktree", "add", "--quiet", "--detach", str(new_worktree(folder)))
    assert reap(tmp_path) == (folder,)
    assert repository.worktrees == 1


@pytest.mark.parametrize(
    ("mode", "is_of_session", "is_ended"),
    [
        pytest.param("wb", True, True, id="writes in the owner's session"),
        pytest.param("rb", True, False, id="reads in the owner's session"),
        pytest.param("wb", False, False, id="writes in another session"),
    ],
)
def test_who_has_lost_its_variables_is_found_by_session_and_open_files(
    tmp_path: Path, mode: str, is_of_session: bool, is_ended: bool
) -> None:
    folder = dead_folder(tmp_path)
    (folder / "ray.log").touch()
    with writer(folder, mode) as process:
        own = os.getsid(process.pid if is_of_session else 0)
        owner = json.loads((folder / "owner.json").read_text())
        (folder / "owner.json").write_text(json.dumps(owner | {"session": own}))
        assert reap(tmp_path) == (folder,)
        if is_ended:
            assert process.wait(WAIT_S) == -9
        assert (process.poll() is None) is not is_ended


def test_the_owner_is_never_ended_for_its_own_files(tmp_path: Path) -> None:
    folder = dead_folder(tmp_path)
    (folder / "ray.log").touch()
    with writer(folder, "wb") as process:
        owner = json.loads((folder / "owner.json").read_text())
        changes = {"session": os.getsid(process.pid), "pid": process.pid}
        (folder / "owner.json").write_text(json.dumps(owner | changes))
        assert processes_of(folder) == ()


def test_a_folder_that_is_there_is_owned_by_nobody_else(tmp_path: Path) -> None:
    folder = tmp_path / "stratbench-theirs"
    folder.mkdir()
    with pytest.raises(FileExistsError), owned(folder):
        pass
    assert folder.exists()


def test_an_interruption_while_a_folder_is_made_leaves_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = Path.mkdir

    def interrupted(folder: Path, mode: int) -> None:
        make(folder, mode)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Path, "mkdir", interrupted)
    with pytest.raises(KeyboardInterrupt), run_folder(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_folder_whose_owner_never_wrote_is_removed_when_it_is_old(tmp_path: Path) -> None:
    folder, named = tmp_path / "stratbench-0123abcd", tmp_path / "stratbench-results"
    for path in (folder, named):
        path.mkdir()
        os.utime(path, (0, 0))
    assert dead_folders(tmp_path) == (folder,)
    assert folder.exists()
    assert reap(tmp_path) == (folder,)
    assert named.exists()


def test_a_folder_that_somebody_else_named_alike_is_never_touched(tmp_path: Path) -> None:
    theirs = tmp_path / "stratbench-results"
    theirs.mkdir()
    (theirs / "results.jsonl").write_text("precious")
    os.utime(theirs, (0, 0))
    assert reap(tmp_path) == ()
    assert (theirs / "results.jsonl").read_text() == "precious"


def test_a_run_of_another_container_is_left_to_it_and_one_of_another_boot_is_not(tmp_path: Path) -> None:
    dead_folder(tmp_path, pid_namespace="pid:[1]")
    assert reap(tmp_path) == ()
    (tmp_path / "stratbench-dead" / "owner.json").unlink()
    (tmp_path / "stratbench-dead").rmdir()
    folder = dead_folder(tmp_path, pid_namespace="pid:[1]", boot="another")
    assert reap(tmp_path) == (folder,)


def test_links_are_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "mine"
    target.mkdir()
    (tmp_path / "stratbench-link").symlink_to(target)
    assert reap(tmp_path) == ()
    assert target.exists()


def test_a_folder_goes_when_its_driver_is_killed(tmp_path: Path) -> None:
    users = tmp_path / "users"
    (users / "harness").mkdir(parents=True)
    (users / "harness" / "__init__.py").write_text("raise RuntimeError('of a user')\n")
    code = (
        "import os, sys, time; from pathlib import Path\n"
        "from harness.provision.temporary_folder import run_folder\n"
        # Where a package stands that is none of ours.
        "os.chdir(sys.argv[2])\n"
        "with run_folder(Path(sys.argv[1])) as folder: print(folder, flush=True); time.sleep(3600)"
    )
    driver = subprocess.Popen([sys.executable, "-c", code, str(tmp_path), str(users)], stdout=subprocess.PIPE)
    assert driver.stdout is not None
    folder = Path(driver.stdout.readline().decode().strip())
    left = sleeper(folder)
    driver.kill()
    driver.communicate()
    assert left.wait(WAIT_S) == -9
    eventually(lambda: not folder.exists(), WAIT_S, "the folder goes")


def test_no_process_is_ended_for_another_folder(tmp_path: Path) -> None:
    process = sleeper(tmp_path / "a-longer-name")
    try:
        assert end_processes(tmp_path / "a") == ()
        assert processes_of(tmp_path / "a-longer-name") == (process.pid,)
    finally:
        process.kill()
        process.wait()


def test_a_process_is_found_while_it_begins_to_run_its_program(tmp_path: Path) -> None:
    """The kernel shows no variables of it for a moment; the first look often falls into that."""
    for _ in range(50):
        process = sleeper(tmp_path)
        try:
            assert _environment(Path(f"/proc/{process.pid}"))
        finally:
            process.kill()
            process.wait()


@pytest.mark.parametrize("pid", [2**22 + 1, 0])
def test_no_process_has_no_start(pid: int) -> None:
    assert start_time(pid) is None
    assert start_time(os.getpid()) is not None


def test_a_temporary_directory_that_is_full_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_path: Path, _text: str) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    message = f"cannot write to the temporary directory {tmp_path}: No space left on device; make room, or"
    with pytest.raises(MissingError, match=message), run_folder(tmp_path):
        pass
    assert not list(tmp_path.glob("stratbench-*"))


def test_a_temporary_directory_with_too_little_room_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=2**20))
    message = f"cannot write to the temporary directory {tmp_path}: 1.0 MiB free of 16 needed; make room, or"
    with pytest.raises(MissingError, match=message), run_folder(tmp_path):
        pass
    assert not list(tmp_path.glob("stratbench-*"))


def fail_in(base: Path, before: Callable[[Path], object]) -> None:
    """A command that fails without a word of its folder."""
    with run_folder(base) as folder:
        before(folder)
        raise TimeoutError("of another program")


def test_a_failure_after_the_folder_is_gone_names_its_directory(tmp_path: Path) -> None:
    with pytest.raises(MissingError, match=f"{tmp_path}: .* removed"):
        fail_in(tmp_path, shutil.rmtree)


def test_a_failure_after_the_folder_is_full_names_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fill(_folder: Path) -> None:
        monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=0))

    with pytest.raises(MissingError, match=f"{tmp_path}: 0.0 MiB free"):
        fail_in(tmp_path, fill)


def test_a_failure_while_there_is_room_stays_what_it_is(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match="of another program"):
        fail_in(tmp_path, Path.exists)


def test_a_folder_that_goes_while_it_is_looked_at_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dead = dead_folder(tmp_path)
    missing = tmp_path / "stratbench-gone"
    monkeypatch.setattr(Path, "glob", lambda _self, _pattern: [missing, dead])
    assert reap(tmp_path) == (dead,)
