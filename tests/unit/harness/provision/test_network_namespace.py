"""A process moves to a network of its own: what it sees then, what is seen of it, and who cleans up."""

import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ports import kept_port
from processes import of_process, process_ids
from waiting import eventually

from harness.provision import network_namespace

WAIT_S = 60.0
NOBODY = 65534
MOVES = """
import json, os, socket, subprocess, sys
from pathlib import Path

from harness.errors import UsageError
from harness.measure.prometheus import listen
from harness.provision.network_namespace import isolate
from harness.provision.temporary_folder import run_folder
from harness.worker.process.os_process import RUN_FOLDER_VARIABLE
from harness.worker.process.messages import JobError

def told_of(address, port):
    try:
        try:
            socket.create_connection((address, port), timeout=5).close()
        except OSError as error:
            raise UsageError(f"dataset() failed: {error.strerror}") from error
    except UsageError as error:
        return JobError.of(error).message

outside, own, base = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])
before = listen(0)
told = [told_of("127.0.0.1", outside), told_of("127.0.0.1", 1)]
refused = isolate()
told += [told_of("127.0.0.1", outside), told_of("192.0.2.1", outside)]
with run_folder(base) as folder:
    child = subprocess.Popen(["sleep", "3600"], env={**os.environ, RUN_FOLDER_VARIABLE: str(folder)})
    inside = socket.create_server(("0.0.0.0", own))
    told.append(told_of("127.0.0.1", own))
    answer = {
        "refused": refused,
        "ids": [os.getuid(), os.getgid()],
        "before": before.getsockname()[1],
        "child": child.pid,
        "told": told,
    }
    print(json.dumps(answer), flush=True)
    sys.stdin.read()
"""
REAPS = """
import sys
from pathlib import Path
from harness.provision.temporary_folder import reap
reap(Path(sys.argv[1]))
"""

REFUSAL = network_namespace.refusal()

pytestmark = pytest.mark.skipif(REFUSAL is not None, reason=f"{REFUSAL}")


class User:
    """User that moves: this one, or another one without privileges.

    Attributes:
        base: a folder of that user.
    """

    def __init__(self, uid: int, base: Path) -> None:
        self.uid, self.base = uid, base
        other: dict[str, Any] = {"user": uid, "group": uid, "extra_groups": []}
        self.identity = {} if uid == os.getuid() else other

    @contextmanager
    def moves(
        self, outside: int = 1, inside: int = 0
    ) -> Iterator[tuple["subprocess.Popen[str]", dict[str, Any]]]:
        """Start the process and read its report about itself.

        Args:
            outside: port of this namespace that it tries to reach. inside: port that it listens on in its
                own, 0 for any.
        """
        command = [sys.executable, "-c", MOVES, str(outside), str(inside), str(self.base)]
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, **pipes, **self.identity) as process:
            try:
                yield process, json.loads(process.stdout.readline())  # type: ignore[union-attr]
            finally:
                process.kill()

    def runs(self, code: str, *arguments: object) -> bool:
        """Run some code to its end; whether it went well."""
        command = [sys.executable, "-c", code, *map(str, arguments)]
        try:
            return subprocess.run(command, timeout=60, check=False, **self.identity).returncode == 0
        except PermissionError:
            return False


@pytest.fixture(params=["this user", "another user"])
def user(request: pytest.FixtureRequest) -> Iterator[User]:
    uid = os.getuid() if request.param == "this user" else NOBODY
    if uid == NOBODY and os.getuid() != 0:
        pytest.skip("only root can be another user")
    base = Path("/tmp", f"isolation-{os.getpid()}-{uid}")
    user = User(uid, base)
    if not user.runs("import harness"):
        pytest.skip(f"user {uid} may not run {sys.executable}")
    base.mkdir()
    os.chown(base, uid, -1)
    yield user
    try:
        # Not before whoever cleans up after a process that was killed has done so.
        eventually(lambda: not any(base.iterdir()), WAIT_S, "nothing is left")
    finally:
        shutil.rmtree(base, ignore_errors=True)


def is_reached(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def has_ended(pidfd: int) -> bool:
    return bool(select.select([pidfd], [], [], WAIT_S)[0])


def guard_of(base: Path) -> int:
    """The process that cleans up after whoever owns the one folder in `base`."""
    (folder,) = base.iterdir()
    wanted = f"harness.provision.temporary_folder\0{folder}\0".encode()

    def guards() -> list[int]:
        return [pid for pid in process_ids() if of_process(pid, "cmdline").endswith(wanted)]

    # For a moment after it was started, a process has no command line.
    eventually(guards, WAIT_S, "the guard has a command line")
    (guard,) = guards()
    return guard


def test_nothing_crosses_but_through_what_listened_before(user: User) -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as ours,
        kept_port() as inside_port,  # where nobody listens out here
        user.moves(ours.getsockname()[1], inside_port) as (_, answer),
    ):
        assert answer["refused"] is None
        assert answer["ids"][0] == user.uid
        assert is_reached(answer["before"])
        assert not is_reached(inside_port)
        before, refused, after, unreachable, inside = answer["told"]
        assert (before, inside) == (None, None)
        # A port that nobody listens on is no lack of a network.
        assert refused == after == "dataset() failed: Connection refused"
        assert unreachable.startswith("dataset() failed: Network is unreachable; a run has no network")


@pytest.mark.parametrize("guarded", [True, False])
def test_a_killed_driver_leaves_nothing_for_longer_than_until_the_next_command(
    user: User, guarded: bool
) -> None:
    with user.moves() as (process, answer):
        child, guard = os.pidfd_open(answer["child"]), os.pidfd_open(guard_of(user.base))
        if not guarded:
            signal.pidfd_send_signal(guard, signal.SIGKILL)
        process.kill()
        process.wait()
        assert has_ended(guard)
        if not guarded:
            assert user.runs(REAPS, user.base)
        assert has_ended(child)
        assert not any(user.base.iterdir())
        os.close(child)
        os.close(guard)
