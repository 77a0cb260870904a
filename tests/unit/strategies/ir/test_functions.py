from strategies.ir.graph import DType, Function, FunctionRef, Graph, Node
from strategies.ir.traversal import (
    called_functions,
    drop_unreachable_functions,
    functions_reaching,
    renamed_functions,
)


def node(name, *inputs, op="Op", **attrs):
    return Node(name=name, op=op, inputs=inputs, attrs=attrs)


def function(name, *nodes):
    return Function(name=name, inputs=(), outputs=(), nodes=nodes, results={})


def test_functions_are_found_through_lists_attributes_and_bodies():
    ref = FunctionRef("outer", {"f": (FunctionRef("bound"),)})
    assert called_functions({"branches": (ref, FunctionRef("other")), "T": DType("float")}) == {
        "outer",
        "bound",
        "other",
    }
    library = {name: function(name) for name in ("outer", "bound", "other", "as_op", "deep", "unused")}
    library["outer"] = function("outer", node("n", op="as_op"))
    library["as_op"] = function("as_op", node("n", f=FunctionRef("deep")))
    graph = Graph(nodes=(node("call", branches=(ref, FunctionRef("other"))),), functions=library)
    kept = drop_unreachable_functions(graph)
    assert set(kept.functions) == {"outer", "bound", "other", "as_op", "deep"}
    assert drop_unreachable_functions(kept) is kept


def test_functions_that_lead_to_a_node_are_found_through_their_callers():
    library = {
        "prints": function("prints", node("p", op="Print")),
        "calls": function("calls", node("n", f=FunctionRef("prints"))),
        "runs": function("runs", node("n", op="calls")),
        "is_called": function("is_called"),
    }
    assert functions_reaching(library, lambda n: n.op == "Print") == {"prints", "calls", "runs"}
    assert functions_reaching(library, lambda n: n.op == "Send") == set()


def test_calls_are_renamed_wherever_they_are():
    ref, other = FunctionRef("f"), FunctionRef("g")
    bound = FunctionRef("h", {"body": ref, "all": (other, ref), "n": 3})
    call = node("n", op="f", branches=(ref, other), body=ref, outer=bound)
    renamed = renamed_functions(call, {"f": "f_quiet"})
    quiet = FunctionRef("f_quiet")
    outer = FunctionRef("h", {"body": quiet, "all": (other, quiet), "n": 3})
    assert renamed == node("n", op="f_quiet", branches=(quiet, other), body=quiet, outer=outer)
    assert renamed_functions(call, {"i": "j"}) is call
