"""Runs ended one after the other at any moment and in any way: nothing piles up, nothing finished is lost."""

import os
import random
import signal
import time
from pathlib import Path

import pytest
from waiting import eventually
from watched_run import records, watched

pytestmark = [pytest.mark.ray, pytest.mark.tensorflow, pytest.mark.timeout(1800)]

N_CYCLES = 8
LONGEST_S = 25.0
RUN = ["run", "quickstart", "--workloads", "digits-mlp:units=16", "--strategies", "single,none,ps,all-reduce"]
SHORT = ["--steps", "40", "--warmup", "2", "--repeats", "2"]


def test_a_run_ended_at_any_moment_leaves_nothing_and_goes_on(tmp_path: Path) -> None:
    moments = random.Random(1)
    out = tmp_path / "out"
    seen: list[dict[str, object]] = []
    for cycle in range(N_CYCLES):
        resume = ["--resume"] if (out / "experiment.yaml").exists() else []
        with watched([*RUN, *SHORT, "--out", str(out), *resume], tmp_path) as run:
            # Whatever kills the driver, what it started ends by itself.
            ending = moments.choice([signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
            moment_s = time.monotonic() + moments.uniform(0.2, LONGEST_S)
            while time.monotonic() < moment_s and run.process.poll() is None:
                time.sleep(0.05)
            if run.process.poll() is None:
                os.kill(run.process.pid, ending)
            run.finish(60.0)
            eventually(lambda: not run.processes(), 20.0, f"cycle {cycle}: its processes go")
            if ending is not signal.SIGKILL:
                assert run.leftovers() == []
        records_before = records(out) if (out / "results.jsonl").exists() else []
        assert records_before[: len(seen)] == seen, f"cycle {cycle} changed what was there"
        seen = records_before
    with watched([*RUN, *SHORT, "--out", str(out), "--resume"], tmp_path) as run:
        status, _, errors = run.finish(600.0)
        assert run.leftovers() == []
    assert status == 0, errors
    ended = [(record["case"], record["repeat"]) for record in records(out) if record["status"] == "ok"]
    assert len(ended) == len(set(ended)) == 4 * 2
