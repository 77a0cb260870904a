"""An engine that is restarted while a case runs: one of this test's own, never the host's."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from harness.provision.docker.engine import IMAGE

pytestmark = [
    pytest.mark.docker,
    pytest.mark.ray,
    pytest.mark.timeout(900),
    pytest.mark.skipif(os.geteuid() != 0, reason="an engine of its own needs root"),
    pytest.mark.skipif(shutil.which("dockerd") is None, reason="dockerd is not installed"),
]

HERE = Path(__file__).parent


@pytest.fixture
def namespace() -> Iterator[str]:
    """A network namespace: the host's engine has rules and bridges of its own, which nobody may disturb."""
    name = f"sbe{os.getpid()}"
    subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        subprocess.run(["ip", "-n", name, "link", "set", "lo", "up"], check=True)
        yield name
    finally:
        subprocess.run(["ip", "netns", "delete", name], check=True)


def test_a_restart_ends_the_case_and_the_next_one_runs(namespace: str, tmp_path: Path) -> None:
    with ExitStack() as stack:
        folder = Path("/tmp") / namespace  # sockets need a short name
        folder.mkdir(mode=0o700)
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        subprocess.run(["docker", "save", "--output", str(folder / "image"), IMAGE], check=True)
        driver = [sys.executable, str(HERE / "restarted_engine.py"), str(folder), str(tmp_path)]
        # Not `ip netns exec`, which mounts another /sys, without the control groups that the engine needs.
        # What the engine mounts goes with a mount namespace.
        inside = ["unshare", "--mount", "nsenter", f"--net=/var/run/netns/{namespace}", *driver]
        shared = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(HERE.parent), str(HERE.parent / "integration"))),
        }
        done = subprocess.run(inside, env=shared, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["worker-died", "[3,", "7]"], done.stderr
