""" """

from strategies.ir.graph import DType, Function, FunctionRef, Graph, Node
from strategies.ir.side_effects import without_visible_ops


def node(name, op, *inputs, **attrs):
    return Node(name=name, op=op, inputs=inputs, attrs=attrs)


def body(name, *nodes):
    controls = {node.name: node.name for node in nodes}
    return Function(
        name=name,
        inputs=(),
        outputs=(),
        nodes=nodes,
        results={},
        control_results=controls,
        control_outputs=tuple(controls),
    )


FLOAT = DType("float")
PRINT = node("print", "PrintV2", "text:output:0", "^before")


def test_a_graph_that_shows_nothing_comes_back_as_it_is():
    graph = Graph(nodes=(node("b", "NoOp"),), functions={"f": body("f", node("a", "NoOp"))})
    assert without_visible_ops(graph) is graph


def test_what_waited_for_something_shown_waits_for_what_that_waited_for():
    after = node("after", "AddV2", "x:z:0", "y:z:0", "^print")
    graph = Graph(
        nodes=(node("call", "f"),), functions={"f": body("f", node("before", "NoOp"), PRINT, after)}
    )
    quiet = without_visible_ops(graph)
    assert quiet.nodes == (node("call", "f__quiet"),)
    function = quiet.functions["f__quiet"]
    assert function.nodes == (node("before", "NoOp"), node("print", "NoOp", "^before"), after)
    assert function.control_results == graph.functions["f"].control_results
    assert quiet.functions["f"] is graph.functions["f"]


def test_print_hands_its_tensor_on():
    output = node("shown", "Print", "x", "text", "^before", T=FLOAT, U=(FLOAT,), message=b"x is", first_n=-1)
    quiet = without_visible_ops(Graph(nodes=(node("x", "Const"), output)))
    assert quiet.nodes == (node("x", "Const"), node("shown", "Identity", "x", "^before", T=FLOAT))


def test_in_a_loop_what_is_shown_keeps_its_frame():
    """A node without inputs is in no frame, and nothing in one could wait for it."""
    enter, text = node("enter", "Enter", "x", frame_name=b"loop"), node("text", "StringFormat", "enter")
    graph = Graph(nodes=(node("x", "Const"), enter, text, node("print", "PrintV2", "text")))
    assert without_visible_ops(graph).nodes[-1] == node("print", "NoOp", "^text")


def test_a_long_chain_costs_what_its_length_does():
    prints = [node(f"print_{i}", "PrintV2", "text", *([f"^print_{i - 1}"] if i else [])) for i in range(5000)]
    calls = [body(f"f_{i}", node("call", f"f_{i + 1}")) for i in range(5000)]
    functions = {f.name: f for f in (*calls, body("f_5000", *prints))}
    quiet = without_visible_ops(Graph(nodes=(node("call", "f_0"),), functions=functions))
    assert quiet.nodes == (node("call", "f_0__quiet"),)
    assert quiet.functions["f_5000__quiet"].nodes[-1] == node("print_4999", "NoOp", "^print_4998")


def test_functions_that_call_what_shows_something_call_its_quiet_form():
    outer = body("outer", node("if", "If", branches=(FunctionRef("f"), FunctionRef("g"))))
    functions = {"outer": outer, "f": body("f", PRINT), "g": body("g", node("a", "NoOp"))}
    quiet = without_visible_ops(
        Graph(nodes=(node("while", "While", body=FunctionRef("outer")),), functions=functions)
    )
    assert quiet.nodes[0].attrs["body"] == FunctionRef("outer__quiet")
    branches = quiet.functions["outer__quiet"].nodes[0].attrs["branches"]
    assert branches == (FunctionRef("f__quiet"), FunctionRef("g"))
    assert "g__quiet" not in quiet.functions
