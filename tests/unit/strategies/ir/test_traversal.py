""" """

import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies.errors import GraphError
from strategies.ir.graph import Arg, DType, Function, FunctionRef, Graph, Node, producer
from strategies.ir.graph_rules import verify
from strategies.ir.traversal import (
    ancestors,
    called_functions,
    copy_nodes,
    descendants,
    drop_unreachable_functions,
    functions_reaching,
    prune,
    renamed_functions,
    topological_order,
)


def node(name, *inputs, op="Op", **attrs):
    return Node(name=name, op=op, inputs=inputs, attrs=attrs)


def function(name, *nodes):
    return Function(name=name, inputs=(), outputs=(), nodes=nodes, results={})


# a → b → d, a:1 → c, c ⇢ d
DIAMOND = Graph(nodes=(node("a"), node("b", "a"), node("c", "a:1"), node("d", "b", "^c")))

LOOP = (
    node("start"),
    node("enter", "start", op="Enter", frame_name=b"loop", is_constant=False),
    node("merge", "enter", "next", op="Merge"),
    node("more", "merge", op="LoopCond"),
    node("switch", "merge", "more", op="Switch"),
    node("body", "switch:1"),
    node("next", "body", op="NextIteration"),
    node("exit", "switch", op="Exit"),
)


def test_ancestors_follow_data_and_control():
    assert ancestors(DIAMOND, ["d"]) == {"a", "b", "c", "d"}
    assert ancestors(DIAMOND, ["d"], control=False) == {"a", "b", "d"}
    assert ancestors(DIAMOND, ["d"], stop={"b"}) == {"a", "c", "d"}
    assert ancestors(DIAMOND, ["d"], stop={"d"}) == set()


def test_ancestors_go_round_a_loop_once():
    assert ancestors(Graph(nodes=LOOP), ["exit"]) == {n.name for n in LOOP}


def test_a_missing_ancestor_is_named():
    with pytest.raises(GraphError, match="'gone' is needed"):
        ancestors(Graph(nodes=(node("a", "gone"),)), ["a"])


def test_descendants_follow_data_and_control():
    assert descendants(DIAMOND, ["c"]) == {"c", "d"}
    assert descendants(DIAMOND, ["c"], control=False) == {"c"}
    assert descendants(DIAMOND, ["a"], stop={"d", "c"}) == {"a", "b"}


@st.composite
def acyclic_graphs(draw):
    nodes = []
    for i in range(draw(st.integers(1, 12))):
        inputs = draw(st.lists(st.integers(0, i - 1), max_size=3, unique=True)) if i else []
        n_control = draw(st.integers(0, len(inputs)))
        refs = [f"n{j}" for j in inputs[n_control:]] + [f"^n{j}" for j in inputs[:n_control]]
        nodes.append(node(f"n{i}", *refs))
    return nodes


@given(acyclic_graphs(), st.randoms())
def test_topological_order_puts_inputs_first(nodes, random):
    shuffled = list(nodes)
    random.shuffle(shuffled)
    ordered = topological_order(shuffled)
    assert sorted(n.name for n in ordered) == sorted(n.name for n in nodes)
    place = {n.name: i for i, n in enumerate(ordered)}
    assert all(place[producer(ref)] < place[n.name] for n in ordered for ref in n.inputs)
    assert topological_order(nodes) == tuple(nodes)


@given(acyclic_graphs(), st.data())
def test_ancestors_and_descendants_are_inverse(nodes, data):
    graph = Graph(nodes=tuple(nodes))
    name = data.draw(st.sampled_from([n.name for n in nodes]))
    assert ancestors(graph, [name]) == {n.name for n in nodes if name in descendants(graph, [n.name])}


def test_a_loop_has_an_order():
    ordered = [n.name for n in topological_order(tuple(reversed(LOOP)))]
    assert ordered.index("merge") < ordered.index("next")
    assert ordered.index("enter") < ordered.index("merge")


def test_a_cycle_is_named():
    with pytest.raises(GraphError, match=r"'a'.*needs it too"):
        topological_order((node("a", "b"), node("b", "^a")))


def test_a_long_chain_needs_no_recursion():
    chain = [node("n0"), *(node(f"n{i}", f"n{i - 1}") for i in range(1, 5_000))]
    assert topological_order(chain[::-1]) == tuple(chain)


def test_copies_refer_to_copies_and_share_the_rest():
    attrs = {"T": DType("float")}
    a = Node(name="a", op="Op", inputs=("shared:1", "^outside"), attrs=attrs, device="/cpu:0", extra=b"x")
    b = node("b", "a", "a:2", "^a", "shared")
    copies = copy_nodes([a, b], "r1/", device=lambda n: f"/gpu:{n.name}")
    assert [n.name for n in copies] == ["r1/a", "r1/b"]
    assert copies[0].inputs == ("shared:1", "^outside")
    assert copies[1].inputs == ("r1/a", "r1/a:2", "^r1/a", "shared")
    assert copies[0].attrs is attrs
    assert copies[0].extra == b"x"
    assert copies[0].device == "/gpu:a"
    assert copy_nodes([a], "r1/")[0].device == "/cpu:0"


def test_copies_can_be_rewired():
    originals = [node("a", "in", "in:1", "^in"), node("b", "a")]
    copies = copy_nodes(originals, "r/", rewire={"in": "feed:3", "^in": "^feed"})
    assert copies[0].inputs == ("feed:3", "in:1", "^feed")
    assert copies[1].inputs == ("r/a",)


def test_colocations_follow_copies_only():
    original = node("b", "a", _class=(b"loc:@a", b"loc:@outside"), T=1)
    copied = copy_nodes([node("a"), original], "r/")[1]
    assert copied.attrs == {"_class": (b"loc:@r/a", b"loc:@outside"), "T": 1}
    assert original.attrs["_class"] == (b"loc:@a", b"loc:@outside")


def test_copies_of_a_loop_have_frames_of_their_own():
    copies = copy_nodes(LOOP[1:], "r/")
    (enter,) = (n for n in copies if n.op == "Enter")
    assert enter.attrs == {"frame_name": b"r/loop", "is_constant": False}
    verify(Graph(nodes=(*LOOP, *copies)))


def test_prune_keeps_what_roots_need():
    graph = Graph(
        nodes=(
            node("a", _class=(b"loc:@unused", b"loc:@b")),
            node("unused", f=FunctionRef("f")),
            node("b", "a", _class=(b"loc:@unused",)),
        ),
        functions={"f": function("f")},
    )
    pruned = prune(graph, ["b"])
    assert [n.name for n in pruned.nodes] == ["a", "b"]
    assert pruned.by_name["a"].attrs == {"_class": (b"loc:@b",)}
    assert pruned.by_name["b"].attrs == {}
    assert pruned.functions == {}
    verify(pruned)
    assert prune(DIAMOND, ["d"]) is DIAMOND


def test_function_references_with_outputs_are_renamed_too():
    arg = Arg(name="x", dtype=DType("float"))
    (copied,) = copy_nodes([node("n", "n:out:0", arg.name)], "r/")
    assert copied.inputs == ("r/n:out:0", "x")


def calling(name, *inputs, op="Op", **attrs):
    return Node(name=name, op=op, inputs=inputs, attrs=attrs)


def function_calling(name, *nodes):
    return Function(name=name, inputs=(), outputs=(), nodes=nodes, results={})


def test_functions_are_found_through_lists_attributes_and_bodies():
    ref = FunctionRef("outer", {"f": (FunctionRef("bound"),)})
    assert called_functions({"branches": (ref, FunctionRef("other")), "T": DType("float")}) == {
        "outer",
        "bound",
        "other",
    }
    library = {
        name: function_calling(name) for name in ("outer", "bound", "other", "as_op", "deep", "unused")
    }
    library["outer"] = function_calling("outer", calling("n", op="as_op"))
    library["as_op"] = function_calling("as_op", calling("n", f=FunctionRef("deep")))
    graph = Graph(nodes=(calling("call", branches=(ref, FunctionRef("other"))),), functions=library)
    functions = drop_unreachable_functions(graph)
    assert set(functions.functions) == {"outer", "bound", "other", "as_op", "deep"}
    assert drop_unreachable_functions(functions) is functions


def test_functions_that_lead_to_a_node_are_found_through_their_callers():
    library = {
        "prints": function_calling("prints", calling("p", op="Print")),
        "calls": function_calling("calls", calling("n", f=FunctionRef("prints"))),
        "runs": function_calling("runs", calling("n", op="calls")),
        "is_called": function_calling("is_called"),
    }
    assert functions_reaching(library, lambda n: n.op == "Print") == {"prints", "calls", "runs"}
    assert functions_reaching(library, lambda n: n.op == "Send") == set()


def test_calls_are_renamed_wherever_they_are():
    ref, other = FunctionRef("f"), FunctionRef("g")
    bound = FunctionRef("h", {"body": ref, "all": (other, ref), "n": 3})
    call = calling("n", op="f", branches=(ref, other), body=ref, outer=bound)
    renamed = renamed_functions(call, {"f": "f_quiet"})
    quiet = FunctionRef("f_quiet")
    outer = FunctionRef("h", {"body": quiet, "all": (other, quiet), "n": 3})
    assert renamed == calling("n", op="f_quiet", branches=(quiet, other), body=quiet, outer=outer)
    assert renamed_functions(call, {"i": "j"}) is call
