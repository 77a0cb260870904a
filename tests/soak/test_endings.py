"""A local run ended at random moments, on a busy machine: after five seconds nothing of it is left."""

import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from processes import descendants, link_of_process, of_process, process_ids, session
from watched_run import WatchedRun, watched

from harness.provision.temporary_folder import start_time

pytestmark = [pytest.mark.ray, pytest.mark.tensorflow, pytest.mark.timeout(4 * 3600)]

RUN = ["run", "quickstart", "--workloads", "digits-mlp:units=16", "--strategies", "none,ps"]
SHORT = ["--steps", "40", "--warmup", "2", "--repeats", "2"]
GONE_WITHIN_S = 5.0
LOOK_S = 0.05
LOG = logging.getLogger(__name__)
"""Shown as it goes on by `--log-cli-level=info`."""
SHARED_MEMORY = Path("/dev/shm")


@contextmanager
def busy_machine() -> Iterator[None]:
    """Keep every core busy with something else."""
    with ExitStack() as stack:
        for _ in range(len(os.sched_getaffinity(0))):
            spinning = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(spinning.kill)
        yield


class Traces:
    """All by which a process or file of a run can be told, noted while the run goes on."""

    def __init__(self, run: WatchedRun) -> None:
        self._run = run
        self._shared_memory = set(SHARED_MEMORY.iterdir())
        self._started: dict[int, int | None] = {}
        self._namespaces: set[str] = set()

    def note(self) -> None:
        for pid in descendants(self._run.process.pid):
            self._started.setdefault(pid, start_time(pid))
        self._namespaces.add(link_of_process(self._run.process.pid, "ns/net"))
        self._namespaces -= {"", link_of_process(os.getpid(), "ns/net")}

    def left(self) -> list[str]:
        """Description of what is left of the run."""
        processes = [
            f"{pid} {of_process(pid, 'cmdline').replace(bytes(1), b' ')[:200]!r}"
            for pid in process_ids()
            if self._is_of_run(pid)
        ]
        files = [*self._run.temporary.iterdir(), *(set(SHARED_MEMORY.iterdir()) - self._shared_memory)]
        return processes + [str(path) for path in files]

    def _is_of_run(self, pid: int) -> bool:
        started = start_time(pid)
        name = str(self._run.temporary).encode()
        return started is not None and (
            self._started.get(pid) == started
            or session(pid) == self._run.process.pid
            or link_of_process(pid, "ns/net") in self._namespaces
            or name in of_process(pid, "environ")
            or name in of_process(pid, "cmdline")
        )


@pytest.mark.parametrize(
    "endings", [[signal.SIGKILL], [signal.SIGTERM, signal.SIGINT]], ids=["killed", "ended"]
)
def test_nothing_is_left_of_a_run_that_is_ended(
    tmp_path: Path, request: pytest.FixtureRequest, endings: list[signal.Signals]
) -> None:
    n_endings = int(request.config.getoption("--endings"))
    moments = random.Random(repr(endings))
    failed: list[str] = []
    with busy_machine():
        longest_s = _whole_run_s(tmp_path)
        for n in range(n_endings):
            ending = endings[n % len(endings)]
            at_s = moments.uniform(0.0, longest_s)
            gone_s, left, stage = _end(tmp_path, n, ending, at_s)
            line = f"{ending.name} at {at_s:.1f} of {longest_s:.1f} s ({stage}): gone after {gone_s:.2f} s"
            LOG.info(line)
            if left:
                failed.append(f"{line}, but for {left}")
    assert not failed, f"{len(failed)} of {n_endings} left something:\n" + "\n".join(failed)


def _whole_run_s(tmp_path: Path) -> float:
    started_s = time.monotonic()
    with watched([*RUN, *SHORT, "--out", str(tmp_path / "whole")], tmp_path) as run:
        status, _, errors = run.finish()
    assert status == 0, errors
    return time.monotonic() - started_s


def _end(tmp_path: Path, n: int, ending: signal.Signals, at_s: float) -> tuple[float, list[str], str]:
    """End a run; seconds until nothing was left, what was left when the time was up, and how far it was."""
    out = tmp_path / f"{ending.name}-{n}"
    limit_s = time.monotonic() + at_s
    with watched([*RUN, *SHORT, "--out", str(out)], tmp_path) as run:
        traces = Traces(run)
        while time.monotonic() < limit_s and run.process.poll() is None:
            traces.note()
            time.sleep(LOOK_S)
        stage = _stage(out, run)
        if run.process.poll() is None:
            os.kill(run.process.pid, ending)
        ended_s = time.monotonic()
        while (left := traces.left()) and time.monotonic() - ended_s < GONE_WITHIN_S:
            run.process.poll()
            time.sleep(LOOK_S)
        return time.monotonic() - ended_s, left, stage


def _stage(out: Path, run: WatchedRun) -> str:
    """Progress of a run."""
    if run.process.poll() is not None:
        return "over"
    n_results = (
        len((out / "results.jsonl").read_bytes().splitlines()) if (out / "results.jsonl").exists() else 0
    )
    if n_results:
        return f"{n_results} results"
    if (out / "logs" / "capture.log").exists():
        return "capture"
    return "start" if run.folder() else "before its folder"
