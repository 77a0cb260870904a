"""A traced step is a step like any other, and tells what each worker of it did."""

import pytest

from harness.verification.reference import Outcome
from harness.verification.worker.in_process import InProcessCluster, programs_of
from harness.worker.jobs import profile_step
from harness.worker.session.step_trace import summary, together
from strategies.planner import payload_matrix

pytestmark = pytest.mark.tensorflow


def traced(cluster, case):
    """The traces of the second step, after a first."""

    def one(session):
        program = session.program
        return profile_step.trace(
            session, [[part[program.start : program.stop] for part in b] for b in case.batches[:2]]
        )

    return cluster.each(one)


def tell(case, plan):
    """Traces of workers of a step among those that the verdict is on."""
    with InProcessCluster(programs_of(case.step, plan), case.initial) as cluster:
        traces = traced(cluster, case)
        cluster.step(case.batches[2])
        return traces, case.reference(plan.replicas_per_task).judge(Outcome(values=cluster.read()))


def events(traces, op):
    return [event for trace in traces for event in trace.events if event.op == op]


@pytest.mark.parametrize(
    ("model", "strategy", "params", "moves"),
    [
        ("digits-cnn+momentum", "ps", {}, "RecvTensor"),
        ("digits-cnn+momentum", "all-reduce", {"transport": "tcp"}, "sum"),
        ("digits-cnn+momentum", "all-reduce", {"transport": "ring"}, "CollectiveReduceV2"),
        ("word-lm+adagrad", "all-reduce", {}, "concatenate"),
        ("word-lm+adagrad", "all-reduce", {"transport": "ring"}, "CollectiveGatherV2"),
    ],
)
def test_a_traced_step_is_exact_and_tells_what_moved(cases, model, strategy, params, moves):
    case = cases.model(model)
    traces, verdict = tell(case, case.plan(strategy, (1, 1), **params))
    assert verdict.equivalent
    assert {e.kind for e in events(traces, moves)} == {"transfer"}
    times = summary(together(traces))
    for parts in zip(times.step_s, times.compute_s, times.transfer_s, times.wait_s, strict=True):
        assert 0 < parts[1] <= sum(parts[1:]) <= parts[0]
    assert (times.received_bytes is None) == (moves in ("sum", "concatenate"))


def test_calls_of_programs_are_no_computing_of_their_own(cases):
    """Operations of a replica's program show its compute, transfers and waits."""
    case = cases.model("digits-mlp+momentum").for_row("tpu-replicate", (1, 1))
    traces, verdict = tell(case, case.plan("tpu-replicate", (1, 1), steps_per_loop=2))
    assert verdict.equivalent
    assert {e.kind for e in events(traces, "StatefulPartitionedCall")} == {"part"}
    assert {e.kind for e in events(traces, "CollectiveReduceV2")} == {"transfer"}
    times = summary(together(traces))
    assert all(n > 0 for n in times.compute_s)
    assert all(n > 0 for n in times.transfer_s)


def test_rows_that_moved_are_no_more_than_the_plan_says(cases):
    """Concatenations of both workers together, twice as large in float64 as its ids are."""
    case = cases.model("word-lm+adagrad")
    plan = case.plan("all-reduce", (1, 1))
    (table,) = (node for node in plan.nodes if node.sparse)
    traces, _ = tell(case, plan)
    (moved,) = {event.n_bytes for event in events(traces, "concatenate")}
    rows = min(table.shape[0], 4 * 4) + min(table.shape[0], 3 * 4)
    assert 0 < moved <= rows * (8 * table.shape[1] + 8)


def test_collectives_beside_a_step_are_traced_with_it(cases):
    case = cases.model("word-lm+adagrad")
    programs = programs_of(case.step, case.plan("parallax", (1, 1)))
    assert all(program.step.background for program in programs)
    with InProcessCluster(programs, case.initial) as cluster:
        traces = traced(cluster, case)
    assert events(traces, "CollectiveReduceV2")
    assert events(traces, "RecvTensor")


def test_what_is_pulled_and_pushed_is_what_the_plan_says(cases):
    case = cases.model("digits-cnn+momentum")
    plan = case.plan("ps", (1, 1))
    traces, _ = tell(case, plan)
    received = summary(together(traces)).received_bytes
    # In float64 all counts twice; TensorFlow moves a few numbers beside the payload.
    sent = payload_matrix(plan, case.summary).sent
    predicted = [2 * sent[1][0], 2 * sent[0][1]]
    assert received == pytest.approx(predicted, rel=0.05)


def test_a_member_that_comes_late_is_waited_for(cases):
    case = cases.model("digits-cnn+momentum")
    traces, _ = tell(case, case.plan("all-reduce", (1, 1), transport="ring"))
    both = [[e for e in t.events if e.group is not None] for t in together(traces)]
    assert both[0]
    for ours, theirs in zip(*(sorted(events, key=lambda e: e.group) for events in both), strict=True):
        assert ours.group == theirs.group
        assert ours.ready_s == theirs.ready_s == max(ours.start_s, theirs.start_s)


@pytest.mark.parametrize("params", [{"staleness": 1}, {"sync": False}, {"backup": 1}])
def test_steps_that_updates_do_not_wait_for_are_traced_or_passed_by(cases, params):
    case = cases.model("digits-cnn+momentum")
    with InProcessCluster(programs_of(case.step, case.plan("ps", (1, 1), **params)), case.initial) as cluster:
        for trace in traced(cluster, case):
            assert trace is not None or params == {"backup": 1}
        cluster.step(case.batches[2])
