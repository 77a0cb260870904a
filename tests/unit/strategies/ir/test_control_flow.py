""" """

import pytest

from strategies.ir.control_flow import LoopFrames, without_waits_across_loops
from strategies.ir.graph import DType, Graph, Node
from strategies.ir.graph_rules import verify

RESOURCE = DType("resource")


def node(name, *inputs, op="Op", **attrs):
    return Node(name=name, op=op, inputs=inputs, attrs=attrs)


def enter(name, ref, frame, **attrs):
    return node(name, ref, op="Enter", frame_name=frame.encode(), **attrs)


def loop(prefix, start, *body, into):
    """A loop around nodes, of which one gives the next round's value; its Exit is `prefix/exit`."""
    return (
        enter(f"{prefix}/enter", start, prefix),
        node(f"{prefix}/merge", f"{prefix}/enter", f"{prefix}/next", op="Merge"),
        node(f"{prefix}/more", f"{prefix}/merge", op="LoopCond"),
        node(f"{prefix}/switch", f"{prefix}/merge", f"{prefix}/more", op="Switch"),
        *body,
        node(f"{prefix}/next", into, op="NextIteration"),
        node(f"{prefix}/exit", f"{prefix}/switch", op="Exit"),
    )


def nested(*more):
    """A loop that takes a variable, in it a loop that takes it too, and a result."""
    inner = loop(
        "inner",
        "outer/switch:1",
        enter("inner/v", "outer/v", "inner", T=RESOURCE),
        node("read", "inner/v", op="ReadVariableOp"),
        into="read",
    )
    return Graph(
        nodes=(
            node("v", op="VarHandleOp"),
            node("start"),
            enter("outer/v", "v", "outer", T=RESOURCE),
            *loop("outer", "start", *inner, into="inner/exit"),
            node("unused", "outer/switch", op="Exit"),
            node("result", "outer/exit"),
            *more,
        )
    )


def test_a_graph_without_loops_has_no_frames():
    graph = Graph(nodes=(node("a"), node("b", "a", "^a")))
    assert LoopFrames.of(graph) == LoopFrames({}, {})
    assert without_waits_across_loops(graph, ("b",)) == (graph, ("b",))


def test_frames_nest_and_outside_the_end_of_the_outermost_loop_stands_for_what_is_in_it():
    loops = LoopFrames.of(nested())
    assert loops.frames["read"] == (b"outer", b"inner")
    assert loops.frames["inner/exit"] == loops.frames["outer/v"] == (b"outer",)
    assert "outer/exit" not in loops.frames
    # An Exit that nobody reads is not run for its own sake.
    assert loops.outside(["read", "start", "outer/merge"]) == ("outer/exit", "start")


def test_a_constant_is_in_the_frame_that_it_waits_for():
    graph = nested(node("constant", "^outer/switch", op="Const"))
    assert LoopFrames.of(graph).frames["constant"] == (b"outer",)


def test_waits_across_the_border_of_a_loop_go():
    graph = nested(node("after", "result", "^read", "^start"))
    rewritten, _ = without_waits_across_loops(graph, ())
    assert rewritten.by_name["after"].inputs == ("result", "^start")
    verify(rewritten)


def test_an_assignment_comes_after_the_loops_that_take_its_variable():
    graph = nested(
        node("assign", "v", "result", "^outer/v", op="AssignVariableOp"),
        node("other", "v", "^outer/v", op="ReadVariableOp"),
    )
    rewritten, _ = without_waits_across_loops(graph, ())
    assert rewritten.by_name["assign"].inputs == ("v", "result", "^outer/exit")
    assert rewritten.by_name["other"].inputs == ("v",)


@pytest.mark.parametrize(
    ("op", "is_merged"), [("PrintV2", True), ("ReadVariableOp", False), ("Switch", False)]
)
def test_what_only_a_merge_made_run_runs_by_itself(op, is_merged):
    graph = nested(node("done", op=op))
    waiting = tuple(
        n.changed(inputs=(*n.inputs, "^done")) if n.name == "inner/merge" else n for n in graph.nodes
    )
    rewritten, must_run = without_waits_across_loops(graph.with_nodes(waiting), ("result",))
    assert rewritten.by_name["inner/merge"].control_inputs == ()
    assert must_run == (("result", "done") if is_merged else ("result",))
