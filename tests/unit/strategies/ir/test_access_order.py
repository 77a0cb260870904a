import pytest
from access_graphs import GRADIENT, HANDLE, LIBRARY, PREDICATE, branch, call, loop, node
from access_rule import are_ordered

from strategies.ir.access_order import AccessOrder
from strategies.ir.graph import Graph


def order_of(*nodes):
    return AccessOrder.of(Graph(nodes=(HANDLE, GRADIENT, PREDICATE, *nodes), functions=LIBRARY), ["gradient"])


def comes_before(*nodes):
    """Assignments by their paths, and whether the gradient comes before."""
    order = order_of(*nodes)
    return {a.path: bool(a.before & order.marks["gradient"]) for a in order.accesses if a.writes}


@pytest.mark.parametrize(
    "result", [lambda *waits: branch("shrinks", "shrinks", *waits), lambda *w: call("shrinks", *w)]
)
def test_an_assignment_in_a_body_does_not_wait_for_what_the_call_takes(result):
    assert set(comes_before(result()).values()) == {False}
    assert set(comes_before(result("^gradient")).values()) == {True}


def test_it_waits_for_what_it_takes_itself():
    assert comes_before(branch("moves", "shrinks")) == {
        ("call", "moves", "move"): True,
        ("call", "shrinks", "assign"): False,
    }


def test_it_waits_for_what_chooses_the_branch():
    assert set(comes_before(branch("shrinks", "moves", predicate="gradient")).values()) == {True}


def test_a_round_of_a_loop_waits_for_its_condition():
    assert set(comes_before(loop("shrinks")).values()) == {True}


def test_calls_within_calls():
    assert comes_before(call("nested")) == {("call", "nested", "inner", "shrinks", "assign"): False}
    assert set(comes_before(call("nested", "^gradient")).values()) == {True}


def done_before(waits_for, *nodes):
    """Return True if the read comes before a node that waits for another."""
    order = order_of(*nodes, node("after", "NoOp", waits_for))
    (read,) = (a for a in order.accesses if not a.writes)
    return bool(order.done["after"] & read.event)


@pytest.mark.parametrize(
    "reads", [call("reads"), branch("reads", "moves"), loop("reads")], ids=lambda n: n.op
)
def test_who_waits_for_a_call_waits_for_what_its_bodies_must_do(reads):
    assert done_before("^call", reads)
    assert done_before("call:1", reads)


def test_who_waits_for_a_call_does_not_wait_for_what_need_not_be_done():
    assert not done_before("^call", call("reads_for_nobody"))


def test_what_only_one_branch_needs_does_not_come_before_the_end_of_the_call():
    order = order_of(branch("moves", "shrinks"), node("after", "NoOp", "^call"))
    assert not order.done["after"] & order.marks["gradient"]


def test_the_end_of_a_first_loop_waits_for_what_its_rounds_read():
    nodes = [
        node("enter", "Enter", "gradient"),
        node("merge", "Merge", "enter", "next"),
        node("switch", "Switch", "merge", "predicate"),
        node("exit", "Exit", "switch"),
        node("read", "ReadVariableOp", "v", "^switch"),
        node("next", "NextIteration", "switch:1", "^read"),
    ]
    assert done_before("exit", *nodes)
    assert not done_before("enter", *nodes)


def test_accesses_of_two_branches_are_never_in_one_run():
    first, second = order_of(branch("shrinks", "moves")).accesses
    assert are_ordered(first, second)


def test_so_are_those_of_a_branch_of_the_first_kind_and_not_what_comes_after_it():
    nodes = [
        node("switch", "Switch", "v", "predicate"),
        node("read", "ReadVariableOp", "switch"),
        node("assign", "AssignVariableOp", "switch:1", "gradient"),
        node("merge", "Merge", "read", "switch:1"),
        node("later", "ReadVariableOp", "v", "^merge"),
    ]
    first, second, later = order_of(*nodes).accesses
    assert (first.writes, second.writes, later.writes) == (False, True, False)
    assert are_ordered(first, second)
    assert not are_ordered(later, second)
