from strategies.ir.graph import Function, FunctionRef, Graph, Node
from strategies.ir.quiet import silenced


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


PRINT = node("print", "PrintV2", "text:output:0", "^before")


def test_a_graph_that_shows_nothing_comes_back_as_it_is():
    graph = Graph(nodes=(PRINT,), functions={"f": body("f", node("a", "NoOp"))})
    assert silenced(graph) is graph, "what is no function's is left out by whoever runs the graph"


def test_what_waited_for_something_shown_waits_for_what_that_waited_for():
    again = node("again", "PrintV2", "text:output:0", "^print")
    after = node("after", "AddV2", "x:z:0", "y:z:0", "^again", "^before")
    graph = Graph(
        nodes=(node("call", "f"),),
        functions={"f": body("f", node("before", "NoOp"), PRINT, again, after)},
    )
    quiet = silenced(graph)
    assert quiet.nodes == (node("call", "f__quiet"),)
    made = quiet.functions["f__quiet"]
    assert made.nodes == (node("before", "NoOp"), node("after", "AddV2", "x:z:0", "y:z:0", "^before"))
    assert dict(made.control_results) == {"before": "before", "after": "after"}
    assert made.control_outputs == ("before", "after")
    assert quiet.functions["f"] is graph.functions["f"]


def test_functions_that_call_what_shows_something_call_its_quiet_form():
    outer = body("outer", node("if", "If", branches=(FunctionRef("f"), FunctionRef("g"))))
    functions = {"outer": outer, "f": body("f", PRINT), "g": body("g", node("a", "NoOp"))}
    quiet = silenced(Graph(nodes=(node("while", "While", body=FunctionRef("outer")),), functions=functions))
    assert quiet.nodes[0].attrs["body"] == FunctionRef("outer__quiet")
    branches = quiet.functions["outer__quiet"].nodes[0].attrs["branches"]
    assert branches == (FunctionRef("f__quiet"), FunctionRef("g"))
    assert "g__quiet" not in quiet.functions
