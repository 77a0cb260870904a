"""Nobody reads a variable while another worker's step assigns it, in whatever branch: by rule and in fact."""

import itertools
from dataclasses import replace

import pytest

from strategies.ir.ops import CALLS

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

import races
from access_rule import verify_shared_variables
from cases import one_at_a_time

from harness.verification.worker.in_process import programs_of
from strategies.compile import compile_tasks
from strategies.errors import GraphError
from strategies.ir.access_order import AccessOrder
from strategies.ir.traversal import prune

N_TRIES = 3  # of each strategy; `tests/soak/test_races.py` makes 200
MOST_TRIES = 20  # of a step that has a race: it shows in every third or second


@pytest.fixture(scope="module")
def case_of(shared):
    return one_at_a_time(lambda name: races.MODELS[name](), shared / "races")


def plan_of(case, row, **knobs):
    strategy, params = races.SERVERS[row]
    return case.plan(strategy, (1, 1), **params, **knobs)


def without_waits(case):
    """The step whose branches do not wait for gradients that only some of what they do needs."""
    crossing = {f"^{b.values}" for b in case.step.boundaries}

    def hasty(node):
        waits = crossing if node.op in CALLS else ()
        return node.changed(inputs=tuple(ref for ref in node.inputs if ref not in waits))

    graph = case.step.graph
    return replace(case.step, graph=graph.with_nodes(map(hasty, graph.nodes)))


@pytest.mark.parametrize(
    ("model", "row"),
    [(model, row) for model in races.MODELS for row in races.SERVERS if model in races.RACED or row == "ps"],
)
def test_steps_that_are_held_up_at_random_compute_what_one_device_computes(case_of, model, row):
    case = case_of(model)
    plan = plan_of(case, row)
    assert races.n_wrong(case, plan, programs_of(case.step, plan), N_TRIES) == 0


@pytest.mark.parametrize(
    ("model", "row"),
    # With parallax nothing dense is on servers.
    [pair for pair in itertools.product(races.RACED, races.SERVERS) if pair != ("accumulated", "parallax")],
)
def test_the_rule_tells_a_branch_that_does_not_wait(case_of, model, row):
    case = case_of(model)
    plan = plan_of(case, row)
    verify_shared_variables(compile_tasks(case.step, plan, range(2)), plan)
    hasty = compile_tasks(without_waits(case), plan, range(2))
    with pytest.raises(GraphError, match=r"of worker 0 assigns it before or after '.*' of worker 1 accesses"):
        verify_shared_variables(hasty, plan)


@pytest.mark.parametrize("row", ["ps", "partitioned-ps"])
def test_steps_that_are_held_up_show_a_branch_that_does_not_wait(case_of, row):
    case = case_of("shrunk")
    plan = plan_of(case, row)
    hasty = compile_tasks(without_waits(case), plan, range(2))
    assert races.n_wrong(case, plan, [rewritten.program for rewritten in hasty], MOST_TRIES) > 0


@pytest.mark.parametrize("knobs", [{"staleness": 1}, {"backup": 1}], ids=str)
@pytest.mark.parametrize("model", races.RACED)
def test_a_worker_that_others_do_not_wait_for_pushes_after_all_its_reads(case_of, model, knobs):
    case = case_of(model)
    for compile_task in compile_tasks(case.step, plan_of(case, "ps", **knobs), range(2)):
        run = prune(compile_task.step.graph, [*compile_task.step.targets(), *compile_task.step.returned()])
        order = AccessOrder.of(run)
        for b in case.step.gradients():
            (v,) = (v for v in case.step.variables if v.name == b.variable)
            pushed = order.done[f"accumulators/{b.values}/push"]
            reads = [a for a in order.accesses if a.handle == v.handle]
            assert reads
            assert all(pushed & read.event for read in reads)
