"""Measurements stay, whatever happens to processes afterwards; and steps take time."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.errors import CaseError
from harness.experiment.model import Measure
from harness.measure.timeouts import USUAL
from harness.run.open_case import OpenCase
from harness.run.worker_figures import memory_left_bytes, slowest_codec_s
from strategies.plan.faults import Fault


def test_an_encoding_that_cannot_be_timed_is_a_note() -> None:
    def call(*_: object, **__: object) -> list[float]:
        raise CaseError("worker-died", "worker 1: process ended by SIGKILL", stage="collect")

    plan = SimpleNamespace(nodes=[SimpleNamespace(compressor="topk")])
    processes = SimpleNamespace(pids=(1, 2), call=call)
    seconds, notes = slowest_codec_s(cast("Any", processes), cast("Any", plan), USUAL)
    assert seconds is None
    assert notes == ("encoding was not timed by itself: worker 1: process ended by SIGKILL",)


def test_memory_that_is_left_is_the_hosts_with_the_least_and_each_gpus() -> None:
    known = [{"host": 5, "GPU-0": 8}, {"host": 3, "GPU-1": 7}, {}]
    processes = SimpleNamespace(pids=(1, 2, 3), call=lambda *_, **__: known)
    left = memory_left_bytes(cast("Any", processes), USUAL)
    assert left == {"host": 3, "GPU-0": 8, "GPU-1": 7}


def opened_case(faults: Sequence[Fault] = ()) -> OpenCase:
    execution = SimpleNamespace(period=1, cycle=1)
    plan = SimpleNamespace(execution=execution, replicas_per_task=(1,), faults=faults)
    capture = SimpleNamespace(summary=SimpleNamespace(variables=(), n_nodes=1))
    repeat = SimpleNamespace(plan=plan, capture=capture)
    measure = Measure(warmup_steps=0, steps=4, repeats=1, interleave=True, seed=0, batch="global", rounds=2)
    return OpenCase(cast("Any", None), cast("Any", repeat), measure, USUAL)


def test_steps_of_a_worker_that_its_faults_delay_are_waited_for() -> None:
    slow = Fault(worker=0, kind="slow", delay_ms=2000.0, from_step=10)
    assert opened_case([slow])._limits.delay_s == 2.0


def test_a_window_without_any_time_fails_its_case() -> None:
    case = opened_case()
    case._collector = cast("Any", SimpleNamespace(median_s=0.1, window=lambda _n, n_lead: 0.0 * n_lead))
    with pytest.raises(CaseError, match="the machine's clock was set back"):
        case.window()
