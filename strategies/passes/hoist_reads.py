"""One read per variable and step: equal reads merged, reads in loops, branches and calls moved out of them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.ir.effects import called, resource_uses
from strategies.ir.graph import Arg, Attr, DType, Function, FunctionRef, Graph, Node, producer
from strategies.ir.train_graph import TrainGraph
from strategies.topology import Topology

_CALLS = frozenset(
    {
        "While",
        "StatelessWhile",
        "If",
        "StatelessIf",
        "Case",
        "StatelessCase",
        "PartitionedCall",
        "StatefulPartitionedCall",
    }
)
_LOOPS = frozenset({"While", "StatelessWhile"})
_BRANCHES = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})
_INPUT_TYPES = {"While": "T", "StatelessWhile": "T"}


@dataclass(frozen=True, kw_only=True, slots=True)
class HoistReads:
    """Merge a variable's reads before its first write, and read it outside of functions that only read it.

    A parameter server then sends each variable once per replica and step, however many layers, loop iterations or
    branches read it. Reads that wait for a write are left where they are.
    """

    name: ClassVar[str] = "hoist-reads"

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:  # noqa: ARG002 - the form of every pass
        """The step with at most one read before the writes of each variable."""
        update = {name for region in graph.regions for name in region.nodes}
        own = {v.read for v in graph.variables}
        dtypes = {v.handle: v.dtype for v in graph.variables if v.rule != "per-replica"}
        hoisted = _hoist_calls(graph.graph, dtypes, update)
        merged = _merge_reads(hoisted, set(dtypes), update | own)
        return graph if merged is graph.graph else replace(graph, graph=merged)


def _merge_reads(graph: Graph, handles: set[str], left_alone: set[str]) -> Graph:
    first: dict[str, str] = {}
    renamed: dict[str, str] = {}
    for node in graph.nodes:
        if node.op == "ReadVariableOp" and len(node.inputs) == 1 and node.name not in left_alone:
            handle = producer(node.inputs[0])
            if handle in handles and first.setdefault(handle, node.name) != node.name:
                renamed[node.name] = first[handle]
    if not renamed:
        return graph
    return graph.with_nodes(_followed(node, renamed) for node in graph.nodes if node.name not in renamed)


def _followed(node: Node, renamed: Mapping[str, str]) -> Node:
    if not any(producer(ref) in renamed for ref in node.inputs):
        return node
    inputs = (_follow(ref, renamed) for ref in node.inputs)
    return replace(node, inputs=tuple(dict.fromkeys(inputs)) if _only_waits(node, renamed) else tuple(inputs))


def _only_waits(node: Node, renamed: Mapping[str, str]) -> bool:
    """A node may read one tensor twice but wait for a node only once."""
    return all(ref[0] == "^" for ref in node.inputs if producer(ref) in renamed) and len(
        set(node.data_inputs)
    ) == len(node.data_inputs)


def _follow(ref: str, renamed: Mapping[str, str]) -> str:
    name = producer(ref)
    if name not in renamed:
        return ref
    return f"^{renamed[name]}" if ref[0] == "^" else renamed[name]


def _hoist_calls(graph: Graph, dtypes: Mapping[str, DType], update: set[str]) -> Graph:
    """Calls that take values instead of the variables that their functions only read."""
    if not any(node.op in _CALLS and node.name not in update for node in graph.nodes):
        return graph
    uses = resource_uses(graph)
    shapes = {n.name: n.attrs["shape"] for n in graph.nodes if n.name in dtypes}
    functions = dict(graph.functions)
    nodes: list[Node] = []
    changed = False
    for node in graph.nodes:
        if node.op not in _CALLS or node.name in update:
            nodes.append(node)
            continue
        positions = {
            k: producer(ref)
            for k, ref in enumerate(node.data_inputs)
            if producer(ref) in dtypes and not set(node.control_inputs) & set(uses[producer(ref)].writes)
        }
        readable = {k for k in positions if _only_read(graph, node, k) and not _output_used(graph, node, k)}
        if not readable:
            nodes.append(node)
            continue
        changed = True
        types = {k: dtypes[positions[k]] for k in readable}
        reads = {k: f"{node.name}/hoisted_{k}" for k in sorted(readable)}
        nodes += [
            Node(
                name=name,
                op="ReadVariableOp",
                inputs=(positions[k],),
                attrs={"dtype": types[k]},
                device=node.device,
            )
            for k, name in reads.items()
        ]
        call = _call_with_values(node, types, functions)
        shaped = {k: shapes[positions[k]] for k in readable}
        inputs = tuple(reads.get(k, ref) for k, ref in enumerate(node.inputs))
        nodes.append(replace(call, inputs=inputs, attrs=_with_shapes(call, shaped)))
    return replace(graph, nodes=tuple(nodes), functions=functions) if changed else graph


def _output_used(graph: Graph, node: Node, position: int) -> bool:
    """A loop passes its variables on; what passes on must not be wanted as a variable."""
    if node.op not in _LOOPS:
        return False
    ref = node.name if position == 0 else f"{node.name}:{position}"
    return any(ref in user.inputs or f"{ref}:0" in user.inputs for user in graph.consumers.get(node.name, ()))


def _only_read(graph: Graph, node: Node, position: int) -> bool:
    """Whether all functions of a call do nothing with an argument but read it, or hand it on to such calls."""
    functions = called(graph, node)
    return bool(functions) and all(
        _argument_only_read(
            graph, f, position - (len(node.data_inputs) - len(f.inputs)), loop=node.op in _LOOPS
        )
        for f in functions
    )


def _argument_only_read(graph: Graph, function: Function, position: int, *, loop: bool) -> bool:
    if position < 0:
        return False
    arg = function.inputs[position].name
    for node in function.nodes:
        for k, ref in enumerate(node.data_inputs):
            if producer(ref) != arg or node.op == "ReadVariableOp":
                continue
            if node.op not in _CALLS or node.op in _LOOPS or not _only_read(graph, node, k):
                return False
    passed_on = [name for name, ref in function.results.items() if producer(ref) == arg]
    return not passed_on or (loop and passed_on == [function.outputs[position].name])


def _call_with_values(node: Node, types: Mapping[int, DType], functions: dict[str, Function]) -> Node:
    """A call whose functions take values at these input positions; they join `functions` under names of their own."""
    n_data = len(node.data_inputs)

    def rewritten(attr: Attr) -> Attr:
        if isinstance(attr, tuple):
            return tuple(rewritten(item) for item in attr)
        if not isinstance(attr, FunctionRef) or attr.name not in functions:
            return attr
        function = functions[attr.name]
        offset = n_data - len(function.inputs)
        made = _with_values(function, {k - offset: t for k, t in types.items()}, functions)
        functions[made.name] = made
        return replace(attr, name=made.name)

    attrs = {key: rewritten(value) for key, value in node.attrs.items()}
    key = _INPUT_TYPES.get(node.op, "Tin")
    offset = 1 if node.op in _BRANCHES else 0
    listed = attrs[key]
    assert isinstance(listed, tuple)
    attrs[key] = tuple(types.get(k + offset, t) for k, t in enumerate(listed))
    return replace(node, attrs=attrs)


def _with_values(function: Function, types: Mapping[int, DType], functions: dict[str, Function]) -> Function:
    """A function that takes the values of the variables at these positions."""
    args = {function.inputs[k].name: t for k, t in types.items()}
    reads = {n.name: producer(n.inputs[0]) for n in function.nodes if _reads_one_of(n, args)}
    nodes = []
    for node in function.nodes:
        if node.name in reads:
            continue
        inputs = tuple(_in_body(ref, reads) for ref in node.inputs if ref[0] != "^" or ref[1:] not in reads)
        taken = {k: args[producer(ref)] for k, ref in enumerate(node.data_inputs) if producer(ref) in args}
        inner = _call_with_values(node, taken, functions) if taken and node.op in _CALLS else node
        nodes.append(replace(inner, inputs=inputs))
    results = {name: _in_body(ref, reads) for name, ref in function.results.items()}
    return replace(
        function,
        name=f"{function.name}__values_{'_'.join(str(k) for k in sorted(types))}",
        inputs=tuple(
            Arg(name=a.name, dtype=types[k]) if k in types else a for k, a in enumerate(function.inputs)
        ),
        outputs=tuple(
            Arg(name=a.name, dtype=args[producer(results[a.name])])
            if a.dtype == "resource" and results[a.name] in args
            else a
            for a in function.outputs
        ),
        nodes=tuple(nodes),
        results=results,
        control_results={k: n for k, n in function.control_results.items() if n not in reads},
        arg_attrs={k: v for k, v in function.arg_attrs.items() if k not in types},
    )


def _reads_one_of(node: Node, args: Iterable[str]) -> bool:
    return node.op == "ReadVariableOp" and producer(node.inputs[0]) in set(args)


def _in_body(ref: str, reads: Mapping[str, str]) -> str:
    return reads.get(producer(ref), ref)


def _with_shapes(node: Node, shapes: Mapping[int, Attr]) -> Mapping[str, Attr]:
    """A loop states the shape of each thing that it passes on; a value has its variable's."""
    stated = node.attrs.get("output_shapes")
    if node.op not in _LOOPS or not isinstance(stated, tuple) or not stated:
        return node.attrs
    return {**node.attrs, "output_shapes": tuple(shapes.get(k, s) for k, s in enumerate(stated))}
