"""A run that is cut short, in every way and at every time: what it leaves, and how it goes on."""

import os
import re
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from processes import program
from waiting import eventually
from watched_run import WatchedRun, records, records_so_far, watched

from harness.experiment.model import Measure

pytestmark = [pytest.mark.ray, pytest.mark.tensorflow]

QUICK, SLOW = "digits-mlp:units=16", "wide-mlp"
# Its steps take seconds whatever the machine: what is done to a case must meet it while it runs.
RUN = ["run", "quickstart", "--strategies", "none,ps", "--steps", "50", "--warmup", "2", "--repeats", "1"]
USUAL_ROUNDS = Measure().rounds
RUN += ["--set", f"measure.rounds={USUAL_ROUNDS}"]
BOTH = [*RUN, "--workloads", f"{QUICK},{SLOW}"]
START_S = 240.0
WORKED_S = 0.4


def slow_cases_are_timed(run: WatchedRun, out: Path) -> Callable[[], bool]:
    """Both are ready at the same time, each with two workers, and all of these go on working.

    While one is opened the other is idle: only in windows do both make steps.
    """
    first: dict[int, float] = {}

    def are_timed() -> bool:
        if len(list(out.glob(f"cases/{SLOW}-*/0/plan.json"))) < 2:
            return False
        assert SLOW not in {record["workload"] for record in records_so_far(out)}, "the moment was missed"
        now = run.workers()
        if len(now) < 4 or first.keys() != now.keys():
            first.clear()
            first.update(now if len(now) == 4 else {})
            return False
        return all(cpu_s > first[pid] + WORKED_S for pid, cpu_s in now.items())

    return are_timed


def worker_of(run: WatchedRun, strategy: str) -> int:
    """A worker's process of the slow case with a strategy, by the log that it writes to."""
    logs = {pid: Path(f"/proc/{pid}/fd/1").readlink() for pid in run.workers()}
    return next(pid for pid, log in logs.items() if log.parts[-3].startswith(f"{SLOW}-{strategy}-"))


def starts(run: WatchedRun, out: Path) -> bool:
    return run.folder() is not None


def starts_ray(run: WatchedRun, out: Path) -> bool:
    return any(program(pid) == "gcs_server" for pid in run.processes())


def captures(run: WatchedRun, out: Path) -> bool:
    return (out / "logs" / "capture.log").exists()


@pytest.mark.parametrize(
    ("when", "interrupt"),
    [
        pytest.param(starts, lambda pid: os.killpg(pid, signal.SIGINT), id="ctrl-c at once"),
        pytest.param(starts_ray, lambda pid: os.killpg(pid, signal.SIGINT), id="ctrl-c while Ray starts"),
        pytest.param(starts_ray, lambda pid: os.kill(pid, signal.SIGTERM), id="SIGTERM while Ray starts"),
        pytest.param(captures, lambda pid: os.kill(pid, signal.SIGTERM), id="SIGTERM while it captures"),
    ],
)
def test_before_the_first_result_an_interruption_leaves_nothing(
    tmp_path: Path, when: Callable[[WatchedRun, Path], bool], interrupt: Callable[[int], None]
) -> None:
    out = tmp_path / "out"
    with watched([*BOTH, "--out", str(out)], tmp_path) as run:
        eventually(lambda: when(run, out), START_S, "the moment comes")
        interrupt(run.process.pid)
        status, output, errors = run.finish(15.0)
        assert run.leftovers() == []
    assert (status, output) == (130, "")
    assert errors.splitlines()[-1].startswith("stratbench: interrupted")
    assert "Traceback" not in errors
    assert records(out) == []


def test_who_interrupts_again_and_again_is_told_once(tmp_path: Path) -> None:
    left = [signal.SIGINT] * 20

    def all_sent() -> bool:
        os.killpg(run.process.pid, left.pop())
        return not left or run.process.poll() is not None

    out = tmp_path / "out"
    with watched([*BOTH, "--out", str(out)], tmp_path) as run:
        eventually(lambda: captures(run, out), START_S, "it captures")
        eventually(all_sent, 15.0, "it is interrupted")
        status, output, errors = run.finish(15.0)
        assert run.leftovers() == []
    assert (status, output) == (130, "")
    way_out = "; results so far are kept, repeat the command with .*"
    assert errors.count("stratbench:") == 1
    assert re.fullmatch(rf"stratbench: interrupted({way_out})?", errors.splitlines()[-1])


def test_a_run_that_is_interrupted_then_killed_goes_on_with_what_is_missing(tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = [*BOTH, "--out", str(out)]
    with watched(command, tmp_path) as run:
        eventually(slow_cases_are_timed(run, out), START_S, "the slow cases make steps")
        n_before = len(records_so_far(out))
        os.killpg(run.process.pid, signal.SIGINT)
        status, output, errors = run.finish(15.0)
        assert run.leftovers() == []
    assert (status, output) == (130, "")
    way_out = f"results so far are kept, repeat the command with --out {out} --resume"
    assert errors.splitlines()[-1] == f"stratbench: interrupted; {way_out}"
    assert len(records(out)) == n_before
    assert (out / "report.html").is_file() == (n_before > 0)

    with watched([*command, "--resume"], tmp_path) as killed:
        eventually(slow_cases_are_timed(killed, out), START_S, "the slow cases make steps again")
        killed.process.kill()
        killed.finish(15.0)
        eventually(lambda: not killed.leftovers(), 20.0, "all of it goes")
    before = (out / "results.jsonl").read_bytes()
    assert len(records(out)) in (0, 2)
    with (out / "results.jsonl").open("a") as torn:
        torn.write(before.decode()[:100])

    with watched([*RUN, "--workloads", QUICK, "--out", str(out), "--resume"], tmp_path) as other:
        status, _, errors = other.finish()
    assert status == 2
    assert errors.splitlines()[-1].startswith("stratbench: out: --resume needs the same experiment, got spec")

    with watched([*command, "--resume"], tmp_path) as resumed:
        status, output, errors = resumed.finish()
    assert (status, "Traceback" in errors) == (0, False), errors
    assert (out / "results.jsonl").read_bytes().startswith(before)
    all_records = records(out)
    assert len({record["case"] for record in all_records}) == len(all_records) == 4
    assert {record["status"] for record in all_records} == {"ok"}
    assert all(record["exposed_comm_s"] is not None for record in all_records if not record["control"])
    assert str(out / "report.html") in output


def test_a_killed_worker_ends_its_case_alone_and_the_baseline_s_costs_no_ratio(tmp_path: Path) -> None:
    out = tmp_path / "out"
    with watched([*RUN, "--workloads", SLOW, "--out", str(out), "--json"], tmp_path) as run:
        eventually(slow_cases_are_timed(run, out), START_S, "the slow cases make steps")
        os.kill(worker_of(run, "ps"), signal.SIGKILL)
        # After one lost worker, any case that loses one is run again: the one that must fail is first.
        eventually(lambda: len(run.workers()) == 2, START_S, "the failed case is closed")
        os.kill(worker_of(run, "none"), signal.SIGKILL)
        status, _, _ = run.finish()
        assert run.leftovers() == []
    assert status == 1
    by_strategy = {record["strategy"]: record for record in records(out)}
    assert len(by_strategy) == len(records(out)) == 2
    failed, baseline = by_strategy["ps"], by_strategy["none"]
    assert (failed["workload"], failed["status"]) == (SLOW, "failed")
    assert failed["error"]["type"] == "worker-died"
    # Processor time is all that is seen from outside: steps of the check look like those of the windows.
    assert failed["error"]["stage"] in ("check", "run")
    assert re.match(
        r"worker \d: its process was killed by SIGKILL .* into run_steps; see worker-\d.log, ",
        failed["error"]["message"],
    )
    assert failed["step_s"] is None
    assert failed["wall_s"] > 0
    assert baseline["status"] == "ok"
    assert any(
        note.startswith("run again on fresh processes, because ratios need the baseline")
        for note in baseline["notes"]
    )
    assert len(baseline["rounds"]["step_s"]) == USUAL_ROUNDS
