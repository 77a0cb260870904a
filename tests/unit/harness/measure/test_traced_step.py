"""Split of a traced step, and the content of its file."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest
from fake_processes import FakeProcesses

from harness.errors import CaseError
from harness.measure import traced_step
from harness.measure.collector import Measurement
from harness.measure.machine_use import Consumption
from harness.measure.traced_step import trace_document, traced
from harness.records.costs import Energy
from harness.records.outcome import Stability, StepSeconds
from harness.records.steps_file import Steps
from harness.worker.jobs.profile_step import trace_step
from harness.worker.session.step_trace import TraceEvent, WorkerTrace, doubts, n_transfers, summary, together


def event(kind, start_s, end_s, **more):
    return TraceEvent(
        **{"row": "CPU:0", "name": "n", "op": "Op"} | more, kind=kind, start_s=start_s, end_s=end_s
    )


def worker(*events, until_s=10.0, clock="one", n_left_out=0):
    return WorkerTrace(clock=clock, start_s=0.0, end_s=until_s, events=events, n_left_out=n_left_out)


def test_every_moment_counts_once_as_the_first_kind_that_it_is():
    trace = worker(
        event("wait", 1.0, 9.0),
        event("transfer", 3.0, 6.0),
        event("compute", 0.0, 2.0),
        event("compute", 1.0, 4.0),
        event("part", 0.0, 10.0),
    )
    times = summary([trace])
    assert (times.compute_s, times.transfer_s, times.wait_s) == ((4.0,), (2.0,), (3.0,))
    assert (times.step_s, times.receiving_s, times.received_bytes) == ((10.0,), (3.0,), None)


def test_a_transfer_waits_until_the_other_side_is_ready():
    times = summary(
        [
            worker(event("transfer", 0.0, 4.0, ready_s=3.0)),
            worker(event("transfer", 1.0, 4.0, ready_s=0.0)),
            worker(event("transfer", 0.0, 4.0, ready_s=7.0)),
        ]
    )
    assert times.wait_s == (3.0, 0.0, 4.0)
    assert times.transfer_s == (1.0, 3.0, 0.0)


def test_a_collective_begins_when_its_last_member_has_come():
    early, late = event("transfer", 1.0, 6.0, group="a"), event("transfer", 4.0, 6.0, group="a")
    alone = event("transfer", 7.0, 8.0, group="b")
    times = summary(together([worker(early, alone), worker(late)]))
    assert times.wait_s == (3.0, 0.0)
    assert times.transfer_s == (3.0, 2.0)


def test_workers_times_count_from_origins_of_their_own():
    early, late = event("transfer", 1.0, 6.0, group="a"), event("transfer", 0.0, 2.0, group="a")
    traces = together([worker(early), replace(worker(late, until_s=2.0), origin_s=4.0)])
    times = summary(traces)
    assert (times.wait_s, times.transfer_s) == ((3.0, 0.0), (2.0, 2.0))
    spans = [(e["pid"], e["ts"], e["dur"]) for e in complete(trace_document("t", traces))]
    assert spans == [(0, 0.0, 10e6), (0, 1e6, 3e6), (0, 4e6, 2e6), (1, 4e6, 2e6), (1, 4e6, 2e6)]


def test_bytes_count_where_they_arrive_whichever_worker_tells_of_them():
    push = event("transfer", 0.0, 1.0, receiver=0, n_bytes=30)
    pull = event("transfer", 0.0, 1.0, receiver=1, n_bytes=5)
    assert summary([worker(), worker(push, pull, pull)]).received_bytes == (30, 10)


def test_what_comes_from_others_is_counted_once_for_all_replicas_of_a_worker():
    moved, summed = event("transfer", 0.0, 1.0), event("transfer", 0.0, 1.0, group="a")
    assert n_transfers([moved, event("compute", 0.0, 1.0), moved, summed, summed]) == 3
    assert n_transfers([]) == 0
    message = replace(worker(moved, n_left_out=4), n_transfers=5)
    assert summary([message, worker()]).n_transfers == (5, 0), "those too that are left out"


def complete(document):
    return [e for e in document["traceEvents"] if e["ph"] == "X"]


def test_a_file_has_a_process_for_each_worker_and_a_thread_for_each_row():
    first = worker(
        event("compute", 0.5, 1.0), event("transfer", 1.0, 3.0, row="ring", ready_s=2.0, n_bytes=8)
    )
    document = trace_document("wide-mlp ps", [first, worker(event("compute", 0.0, 1.0))])
    assert json.loads(json.dumps(document)) == document
    names = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in document["traceEvents"] if e["name"] == "thread_name"
    }
    rows = {(0, 0): "step", (0, 1): "CPU:0", (0, 2): "ring", (1, 0): "step", (1, 1): "CPU:0"}
    assert names == rows
    ring = [(e["cat"], e["ts"], e["dur"], e["args"]) for e in complete(document) if e["tid"] == 2]
    assert ring == [
        ("wait", 1e6, 1e6, {"op": "Op"}),
        ("transfer", 2e6, 1e6, {"op": "Op", "bytes": 8}),
    ]


def test_what_runs_at_the_same_time_does_not_overlap_in_a_file():
    spans = [(0.0, 4.0), (1.0, 2.0), (1.5, 5.0), (2.0, 3.0), (4.0, 6.0)]
    document = trace_document("t", [worker(*(event("compute", *span) for span in spans))])
    lanes = {}
    for e in complete(document):
        lanes.setdefault(e["tid"], []).append((e["ts"], e["ts"] + e["dur"]))
    assert sum(map(len, lanes.values())) == 1 + len(spans)
    for lane in lanes.values():
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(lane))


def test_a_file_keeps_the_longest_events_and_says_how_many_it_leaves_out(monkeypatch):
    monkeypatch.setattr(traced_step, "MAX_EVENTS", 2)
    events = [event("compute", 0.0, length) for length in (1.0, 3.0, 2.0)]
    document = trace_document("t", [worker(*events, until_s=3.0, n_left_out=7)])
    assert sorted(e["dur"] for e in complete(document)) == [2e6, 3e6, 3e6]
    assert document["otherData"]["events_left_out"] == 8


def test_what_may_be_wrong_with_a_trace_is_told():
    assert doubts([worker(), worker()]) is None
    message = doubts([worker(), worker(clock="other", n_left_out=3), worker()])
    assert "clocks of 2 machines" in message
    assert "3 shortest" in message


class Processes(FakeProcesses):
    def __init__(self, answers):
        super().__init__(["127.0.0.1", "127.0.0.1"])
        self._answers = answers

    def answer(self, job, per_worker_args, stage):
        assert (job, stage) == (trace_step, "collect")
        self.args = per_worker_args
        if isinstance(self._answers, Exception):
            raise self._answers
        return self._answers


def measured(n_steps):
    steps = np.tile(np.arange(n_steps), 2)
    starts = np.arange(len(steps), dtype=float)
    return Measurement(
        examples_per_s=1.0,
        step_s=StepSeconds(n=n_steps),
        warmup_steps=0,
        settled=True,
        tcp=None,
        interface_bytes_per_step=None,
        hosts=None,
        peak_rss_bytes=(None, None),
        loss=(),
        n_steps=0,
        steps=Steps(
            worker=steps,
            step=steps,
            start_s=starts,
            end_s=starts + 1,
            loss=starts,
            warmup=steps < 0,
            window=steps,
        ),
        stability=Stability(),
        consumption=Consumption(cpu_s_per_step=(0.1, 0.3), energy=Energy(package_j_per_step=2.0)),
    )


def test_a_step_is_traced_on_all_workers():
    processes = Processes([worker(event("compute", 0.0, 1.0)), worker(event("compute", 0.0, 2.0))])
    trace = traced(processes, measured(5), title="t", period=1)
    assert trace.step is not None
    assert trace.step.compute_s == (1.0, 2.0)
    assert trace.document is not None
    assert processes.args == [(1,), (1,)]


OWN, SERVED = "/job:localhost/replica:0/task:0", "/job:worker/replica:0/task:1"


@pytest.mark.parametrize(
    ("devices", "idle"),
    [
        ([[f"{OWN}/device:GPU:0"], [f"{SERVED}/device:GPU:0", f"{SERVED}/device:GPU:1"]], None),
        ([[f"{OWN}/device:GPU:0"], [f"{OWN}/device:GPU:0", f"{OWN}/device:GPU:1"]], None),
        ([[f"{OWN}/device:GPU:0"], [f"{SERVED}/device:GPU:0"]], "task:1/device:GPU:1"),
        (
            [[f"{OWN}/device:CPU:0"], [f"{SERVED}/device:GPU:0", f"{SERVED}/device:GPU:1"]],
            "task:0/device:GPU:0",
        ),
        ([["/device:GPU:0"], []], "task:0/device:GPU:0, task:1/device:GPU:0, task:1/device:GPU:1"),
    ],
)
def test_a_step_runs_on_every_gpu(devices, idle):
    step = worker(event("compute", 0.0, 1.0))
    traces = [replace(step, devices=("/device:GPU:0", *of_worker)) for of_worker in devices]
    if idle is None:
        assert (
            traced(Processes(traces), measured(5), title="t", period=1, gpus_per_worker=(1, 2)).step
            is not None
        )
        return
    with pytest.raises(CaseError, match=f"ran on {idle};") as failed:
        traced(Processes(traces), measured(5), title="t", period=1, gpus_per_worker=(1, 2))
    assert failed.value.kind == "no-device"


GPU = ("/device:GPU:0", "/job:worker/replica:0/task:0/device:GPU:0")


@pytest.mark.parametrize(
    ("host_end_s", "median_s", "bound"),
    [(6.0, 8.0, True), (5.0, 8.0, False), (6.0, 1.2, False), (6.0, None, False)],
)
def test_a_case_is_bound_by_the_host_of_its_gpus(host_end_s, median_s, bound):
    """A case is not bound if its GPUs are busy for most of an untraced step."""
    kernels, host = event("compute", 0.0, 0.7), event("host", 0.0, host_end_s)
    trace = replace(worker(kernels, host), devices=GPU)
    steps = replace(measured(5), step_s=StepSeconds(n=5, p50=median_s))
    result = traced(Processes([trace, trace]), steps, title="t", period=1)
    assert result.step is not None
    assert result.step.host_bound is bound
    if bound:
        assert result.note.startswith(
            "host-bound: kernels ran 7 % of the traced step; the host launches them"
        )
    else:
        assert result.note is None


def test_where_no_kernel_was_traced_nothing_is_known_of_the_step():
    trace = replace(worker(event("host", 0.0, 9.0)), devices=GPU[1:])
    result = traced(Processes([trace, trace]), measured(5), title="t", period=1)
    assert result.step is None
    assert result.document is not None
    assert "traced no GPU kernels" in result.note


@pytest.mark.parametrize(("n_done", "n_before"), [(16, 8), (14, 2), (15, 1), (13, 3)])
def test_the_first_step_of_a_period_is_traced_after_at_least_one(n_done, n_before):
    processes = Processes([None, None])
    traced(processes, measured(n_done), title="t", period=8)
    assert processes.args[0] == (n_before,)
    assert (n_done + n_before) % 8 == 0


@pytest.mark.parametrize(
    ("answers", "note"),
    [
        (CaseError("worker-died", "worker 1: gone", stage="collect"), "no traced step: worker 1: gone"),
        (
            [worker(), None],
            "no traced step: some workers skipped the step, because updates do not wait for them",
        ),
    ],
)
def test_what_has_been_measured_stands_without_a_trace(answers, note):
    trace = traced(Processes(answers), measured(5), title="t", period=1)
    assert (trace.step, trace.document, trace.note) == (None, None, note)
