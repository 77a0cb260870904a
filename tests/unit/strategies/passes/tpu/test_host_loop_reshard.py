"""Resharding around host loops: what the pass makes of a graph, as text, and what it leaves and why."""

import difflib

import pytest
from golden_texts import check_text
from graph_text import exact_text
from host_loop_cases import CHANGED, LEFT, enter, loop, read, second_handle
from host_loop_graphs import RESOURCE, graph_of, in_function

from strategies.ir.graph import FunctionRef, Graph, Node
from strategies.ir.graph_rules import verify
from strategies.ir.text import to_text
from strategies.passes.tpu.computations import CompileMetadata
from strategies.passes.tpu.host_loop_reshard import reshard_host_loops

RESHARD = "TPUReshardVariables"
STATE = b"stratbench/format/"


def nodes_of(graph: Graph) -> list[Node]:
    return [*graph.nodes, *(node for function in graph.functions.values() for node in function.nodes)]


def resharded_names(graph: Graph) -> set[str]:
    """Variables that nodes reshard before executes, by the names that the cases give them."""
    shards = [node for node in nodes_of(graph) if node.op == RESHARD and node.name.endswith("/shard")]
    refs = (part for node in shards for ref in node.data_inputs[:-2] for part in ref.split("/"))
    return {part.split("_")[0] for part in refs} & {"w", "m", "x"}


@pytest.mark.parametrize("name", CHANGED)
def test_golden(name):
    graph = CHANGED[name]()
    before = exact_text(graph)
    resharding = reshard_host_loops(graph)
    assert exact_text(graph) == before
    assert to_text(reshard_host_loops(CHANGED[name]()).graph) == to_text(resharding.graph)
    verify(resharding.graph)
    left = "".join(f"# left: {node}: {reason}\n" for node, reason in resharding.left.items())
    lines = (to_text(one_graph).splitlines(keepends=True) for one_graph in (graph, resharding.graph))
    diff = difflib.unified_diff(*lines, fromfile="before", tofile="after", n=1_000)
    check_text(f"{left}{''.join(diff)}", f"{name}.txt", folder="resharding")


@pytest.mark.parametrize("name", LEFT)
def test_left_as_it_is(name):
    make, reasons = LEFT[name]
    graph = make()
    verify(graph)
    resharding = reshard_host_loops(graph)
    assert resharding.graph is graph
    assert resharding.left.keys() == reasons.keys()
    assert all(resharding.left[node].startswith(reason) for node, reason in reasons.items())


@pytest.mark.parametrize("name", CHANGED)
def test_a_graph_that_is_resharded_stays_as_it_is(name):
    graph = reshard_host_loops(CHANGED[name]()).graph
    assert reshard_host_loops(graph).graph is graph


@pytest.mark.parametrize("name", CHANGED)
def test_each_replica_has_a_format_of_its_own(name):
    nodes = nodes_of(reshard_host_loops(CHANGED[name]()).graph)
    by_name = {node.name: node for node in nodes}
    reshards = [node for node in nodes if node.op == RESHARD]
    states = [by_name[node.data_inputs[-1].split(":")[0]].attrs["shared_name"] for node in reshards]
    assert all(state.startswith(STATE) for state in states)
    # One before each iteration, one after the last.
    assert {states.count(state) for state in states} == {2}


@pytest.mark.parametrize(
    ("device", "shared_name", "is_w"),
    [
        ("/device:CPU:0", "w_0", True),
        ("/cpu:0", "w_0", True),
        ("/job:localhost/replica:0/task:0/device:CPU:0", "w_0", True),
        ("", "w_0", True),
        ("/device:CPU:1", "w_0", False),
        ("/device:GPU:0", "w_0", False),
        ("/device:CPU:0", "w", False),
    ],
)
def test_another_handle_is_of_the_same_variable_by_name_and_device(device, shared_name, is_w):
    graph = reshard_host_loops(second_handle(device, shared_name)).graph
    assert resharded_names(graph) == ({"m"} if is_w else {"w", "m"})


BY = {
    "identities": ([Node(name="by", op="Identity", inputs=("again",), attrs={"T": RESOURCE})], "by"),
    "several at once": (
        [Node(name="by", op="IdentityN", inputs=("m_0", "again"), attrs={"T": (RESOURCE, RESOURCE)})],
        "by:1",
    ),
    "a branch": (
        [
            Node(name="which", op="Placeholder", attrs={"dtype": RESOURCE}),
            Node(name="switch", op="Switch", inputs=("again", "which"), attrs={"T": RESOURCE}),
            Node(name="by", op="Merge", inputs=("switch", "switch:1"), attrs={"T": RESOURCE, "N": 2}),
        ],
        "by",
    ),
}


@pytest.mark.parametrize("by", BY)
def test_a_handle_is_followed_to_where_it_is_made(by):
    nodes, ref = BY[by]
    assert resharded_names(reshard_host_loops(second_handle(by=nodes, ref=ref)).graph) == {"m"}
    assert resharded_names(reshard_host_loops(second_handle(shared_name="x", by=nodes, ref=ref)).graph) == {
        "w",
        "m",
    }


def test_a_handle_is_followed_through_calls():
    swap = in_function(
        (), {"a": RESOURCE, "b": RESOURCE}, {"c": ("b", RESOURCE), "d": ("a", RESOURCE)}, "swap"
    )
    attrs = {"Tin": (RESOURCE, RESOURCE), "Tout": (RESOURCE, RESOURCE), "f": FunctionRef("swap")}
    call = Node(name="by", op="PartitionedCall", inputs=("m_0", "again"), attrs=attrs)
    for ref, others in (("by", {"m"}), ("by:1", {"w"})):
        graph = second_handle(by=[call], ref=ref)
        resharding = reshard_host_loops(Graph(nodes=graph.nodes, functions={**graph.functions, "swap": swap}))
        assert resharded_names(resharding.graph) == others


def test_a_handle_of_one_of_several_variables_may_be_of_any():
    nodes = [
        Node(name="which", op="Placeholder", attrs={"dtype": RESOURCE}),
        Node(name="by", op="Merge", inputs=("again", "m_0"), attrs={"T": RESOURCE, "N": 2}),
    ]
    resharding = reshard_host_loops(second_handle(shared_name="y", by=nodes, ref="by"))
    assert not resharded_names(resharding.graph)


def test_other_resources_are_no_variables():
    graph = graph_of(
        loop(),
        more=[
            Node(name="iterator", op="IteratorV2", attrs={"shared_name": b"w_0"}),
            enter("iterator", "loop/iterator"),
            read("loop/iterator"),
        ],
    )
    assert resharded_names(reshard_host_loops(graph).graph) == {"w", "m"}


def test_metadata_keeps_what_it_does_not_know():
    graph = graph_of(loop())
    # A string in field 8, and a message in field 2 of the first argument: neither is declared here.
    argument = b"\x0a\x08\x18\x02\x30\x01\x12\x02\x08\x05"
    proto = argument + b"\x0a\x04\x18\x02\x30\x01\x18\x02\x20\x01\x42\x03abc"
    compiled = graph.by_name["loop/compile"]
    attrs = {**compiled.attrs, "metadata": proto}
    graph = graph.with_nodes(node.changed(attrs=attrs) if node is compiled else node for node in graph.nodes)
    after = reshard_host_loops(graph).graph.by_name["loop/compile"].attrs["metadata"]
    assert CompileMetadata.parse(after).arguments == CompileMetadata.parse(CHANGED_METADATA).arguments
    assert b"\x12\x02\x08\x05" in after
    assert b"\x42\x03abc" in after


CHANGED_METADATA = b"\x0a\x04\x18\x02\x30\x02\x0a\x04\x18\x02\x30\x02\x18\x02\x20\x01"
