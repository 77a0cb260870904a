"""Lookups of rows in a variable, in place of reads of all of it from which rows are gathered."""

from collections import defaultdict
from collections.abc import Collection, Container, Iterator, Mapping, Sequence

from strategies.errors import GraphError
from strategies.ir.graph import Graph, Node, producer
from strategies.ir.partitioning.constants import constant_fact
from strategies.ir.traversal import descendants, topological_order


def with_row_lookups(graph: Graph, handles: Collection[str]) -> Graph:
    """The graph whose gathers along the first axis take rows of a variable, not of its value.

    Keras's `Embedding` reads its table and gathers from the value: a worker that has the table elsewhere
    would be sent all of it. What waited for the read waits for the lookup, above all a write of the table.
    A gather that waits for some of that itself stays as it is, and all do where lookups would wait for each
    other.

    Args:
        handles: of the step's variables.
    """
    lookups: dict[str, Node] = {}
    looked_up: defaultdict[str, list[str]] = defaultdict(list)
    for read, gather in _gathers(graph, handles):
        lookups[gather.name] = _lookup(read, gather)
        looked_up[read.name].append(gather.name)
    if not lookups:
        return graph
    needed = {producer(ref) for node in graph.nodes if node.name not in lookups for ref in node.data_inputs}
    rewritten = [_waiting(lookups.get(node.name, node), looked_up, needed) for node in graph.nodes]
    try:
        topological_order(rewritten)
    except GraphError:
        return graph  # ids of two tables come of each other's updates, and rows are those of before both
    return graph.with_nodes(rewritten)


def _gathers(graph: Graph, handles: Collection[str]) -> Iterator[tuple[Node, Node]]:
    """Reads of variables, and gathers of rows from their values that need not come before what waits."""
    for read in graph.nodes:
        if read.op != "ReadVariableOp" or read.inputs[0] not in handles:
            continue
        users = graph.consumers.get(read.name, ())
        gathers = [user for user in users if _takes_rows(graph, user, read.name)]
        if gathers:
            later = descendants(graph, [user.name for user in users if read.name in user.control_inputs])
            yield from ((read, gather) for gather in gathers if gather.name not in later)


def _takes_rows(graph: Graph, node: Node, read: str) -> bool:
    if node.op != "GatherV2" or node.attrs.get("batch_dims", 0) != 0:
        return False
    params, indices, axis = map(producer, node.data_inputs)
    return params == read != indices and constant_fact(graph.by_name[axis]).values == (0,)


def _lookup(read: Node, gather: Node) -> Node:
    waits = dict.fromkeys((*read.control_inputs, *gather.control_inputs))
    return Node(
        name=gather.name,
        op="ResourceGather",
        inputs=(read.inputs[0], gather.data_inputs[1], *(f"^{name}" for name in waits)),
        attrs={
            "dtype": read.attrs["dtype"],
            "Tindices": gather.attrs["Tindices"],
            "batch_dims": 0,
            "validate_indices": True,
        },
        device=gather.device,
    )


def _waiting(node: Node, looked_up: Mapping[str, Sequence[str]], needed: Container[str]) -> Node:
    """The node, which waits for the lookups in place of a read, or beside one whose value is needed still."""
    if looked_up.keys().isdisjoint(node.control_inputs):
        return node
    waits: dict[str, None] = {}
    for name in node.control_inputs:
        if name not in looked_up or name in needed:
            waits[name] = None
        waits |= dict.fromkeys(looked_up.get(name, ()))
    return node.changed(inputs=(*node.data_inputs, *(f"^{name}" for name in waits)))
