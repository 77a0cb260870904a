"""Calls and reads that take a variable's value instead of the variable."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from strategies.ir.graph import Arg, Attr, DType, Function, FunctionRef, Graph, Node, Shape, producer, tensor
from strategies.ir.ops import BRANCHES, CALLS, LOOPS
from strategies.ir.resource_uses import called
from strategies.ir.tensor_proto import const
from strategies.ir.train_graph import TrainGraph
from strategies.ir.traversal import COLOCATION_ATTR
from strategies.ir.variable import Variable

_READERS = frozenset({"ReadVariableOp", "VariableShape", "ResourceGather"})
# A call may look up elements itself; no single node of a loop represents the whole loop.
_READERS_OUTSIDE_CALLS = _READERS | {"ResourceGatherNd"}
# A TensorFlow 1 loop reads loop-invariant values through Enter, a branch through Switch.
_FORWARDERS = {"Identity": frozenset({0}), "Enter": frozenset({0}), "Switch": frozenset({0, 1})}
_SWITCHED = ("output_false", "output_true")
TAKERS = CALLS | _FORWARDERS.keys()
_INT32 = DType("int32")

Use: TypeAlias = tuple[Node, int]
"""Node and position of one of its data inputs."""


@dataclass(slots=True)
class ValueArguments:
    """Rewrites calls of one graph; functions that take values are added to the library under new names.

    Attributes:
        functions: function library, to which functions are added.
    """

    graph: Graph
    functions: dict[str, Function] = field(init=False)
    _uses: dict[str, Mapping[str, list[Use]]] = field(default_factory=dict)
    _flows: dict[tuple[str, int], frozenset[str] | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.functions = dict(self.graph.functions)

    def passed_on(self, node: Node, position: int) -> frozenset[int] | None:
        """Outputs of a node that return an input variable's handle; None unless a call only reads it."""
        if node.op in _FORWARDERS:
            return _FORWARDERS[node.op]
        outputs: set[frozenset[int]] = set()
        for function in called(self.graph, node):
            own = position - (len(node.data_inputs) - len(function.inputs))
            returned = None if own < 0 else self._returned_outputs(function, own)
            if returned is None:
                return None
            outputs.add(returned)
        if node.op in LOOPS:
            # The condition returns no variable; the body must return the variable at the same position.
            return frozenset({position}) if outputs == {frozenset(), frozenset({position})} else None
        return outputs.pop() if len(outputs) == 1 else None

    def _returned_outputs(self, function: Function, position: int) -> frozenset[int] | None:
        refs = self._flow(function, position)
        if refs is None:
            return None
        return frozenset(i for i, out in enumerate(function.outputs) if function.results[out.name] in refs)

    def _flow(self, function: Function, position: int) -> frozenset[str] | None:
        """References to an argument in a body; None if it is not only read."""
        key = (function.name, position)
        if key not in self._flows:
            self._flows[key] = None  # a recursive call proves nothing
            uses = self._uses_in(function)
            self._flows[key] = self.follow(
                [function.inputs[position].name], lambda ref: uses.get(ref, ()), _body_ref
            )
        return self._flows[key]

    def _uses_in(self, function: Function) -> Mapping[str, list[Use]]:
        if function.name not in self._uses:
            self._uses[function.name] = tensor_uses(function.nodes)
        return self._uses[function.name]

    def follow(
        self,
        refs: Iterable[str],
        uses_of: Callable[[str], Iterable[Use]],
        output: Callable[[Node, int], str],
        *,
        by: str = "",
    ) -> frozenset[str] | None:
        """All references to the same variable, through identities, loops, branches and calls.

        Args:
            output: function that makes the reference to an output of a node.
            by: op of the node that produces the references, if it is in a graph.
        Returns:
            The references; None if one of them is used for more than reading.
        """
        readers = _READERS_OUTSIDE_CALLS if by in _FORWARDERS else _READERS
        aliases: set[str] = set()
        waiting = list(refs)
        while waiting:
            ref = waiting.pop()
            if ref in aliases:
                continue
            aliases.add(ref)
            for node, k in uses_of(ref):
                if node.op in TAKERS:
                    returned = self.passed_on(node, k)
                    if returned is None:
                        return None
                    waiting += [output(node, i) for i in returned]
                elif node.op not in readers or k != 0:
                    return None
        return frozenset(aliases)

    def call(self, node: Node, values: Mapping[int, tuple[DType, Shape]]) -> Node:
        """Call whose functions take values at these input positions; its inputs stay unchanged."""
        types = {k: dtype for k, (dtype, _) in values.items()}
        outputs = {i: values[k] for k in values for i in self.passed_on(node, k) or ()}
        attrs = {key: self._with_values(a, len(node.data_inputs), types) for key, a in node.attrs.items()}
        offset = 1 if node.op in BRANCHES else 0
        value_types = {k - offset: dtype for k, dtype in types.items()}
        _replace_items(attrs, "T" if node.op in LOOPS else "Tin", value_types)
        if node.op not in LOOPS:
            _replace_items(attrs, "Tout", {i: dtype for i, (dtype, _) in outputs.items()})
        # Passed-through values now have the shape of the value.
        _replace_items(attrs, "output_shapes", {i: shape for i, (_, shape) in outputs.items()})
        return replace(node, attrs=attrs)

    def _with_values(self, attr: Attr, n_inputs: int, types: Mapping[int, DType]) -> Attr:
        if isinstance(attr, tuple):
            return tuple(self._with_values(item, n_inputs, types) for item in attr)
        if not isinstance(attr, FunctionRef) or attr.name not in self.functions:
            return attr
        function = self.functions[attr.name]
        offset = n_inputs - len(function.inputs)
        own = {k - offset: dtype for k, dtype in types.items()}
        name = f"{function.name}__values_{'_'.join(str(k) for k in sorted(own))}"
        if name not in self.functions:
            self.functions[name] = self._function(function, name, own)
        return replace(attr, name=name)

    def _function(self, function: Function, name: str, types: Mapping[int, DType]) -> Function:
        args = {ref: dtype for k, dtype in types.items() for ref in self._flow(function, k) or ()}
        reads = {
            node.name: node.inputs[0]
            for node in function.nodes
            if node.op == "ReadVariableOp" and node.inputs[0] in args
        }
        results = {key: reads.get(producer(ref), ref) for key, ref in function.results.items()}
        control_results = {k: n for k, n in function.control_results.items() if n not in reads}
        return replace(
            function,
            name=name,
            inputs=tuple(
                Arg(name=a.name, dtype=types[k]) if k in types else a for k, a in enumerate(function.inputs)
            ),
            outputs=tuple(
                Arg(name=a.name, dtype=args[results[a.name]]) if results[a.name] in args else a
                for a in function.outputs
            ),
            nodes=tuple(self._body(function, args, reads)),
            results=results,
            control_outputs=tuple(k for k in function.control_outputs if k in control_results),
            control_results=control_results,
            arg_attrs={k: v for k, v in function.arg_attrs.items() if k not in types},
        )

    def _body(
        self, function: Function, args: Mapping[str, DType], reads: Mapping[str, str]
    ) -> Iterator[Node]:
        for node in function.nodes:
            if node.name in reads:
                continue
            values = {k: (args[r], Shape(None)) for k, r in enumerate(node.data_inputs) if r in args}
            inputs = tuple(
                reads.get(producer(ref), ref) for ref in node.inputs if ref[0] != "^" or ref[1:] not in reads
            )
            # A colocation may name a removed read.
            plain = node.without_attrs(COLOCATION_ATTR).changed(inputs=inputs)
            yield from self.with_values(plain, values, _body_ref) if values else (plain,)

    def with_values(
        self, node: Node, values: Mapping[int, tuple[DType, Shape]], output: Callable[[Node, int], str]
    ) -> Iterator[Node]:
        """Node that takes values at these input positions, preceded by the nodes that it needs for that."""
        if node.op in CALLS:
            yield self.call(node, values)
            return
        dtype, _ = values[0]
        if node.op == "VariableShape":
            attrs = {"T": dtype, "out_type": node.attrs.get("out_type", _INT32)}
            yield replace(node, op="Shape", attrs=attrs)
        elif node.op == "ResourceGather":
            table = node.data_inputs[0]
            # A constant is in the frame of what it waits for; a function's argument is in none.
            waited_for = [producer(table)] if output is graph_ref or ":" in table else []
            batch_dims = node.attrs.get("batch_dims", 0)
            assert isinstance(batch_dims, int)
            axis = const(f"{node.name}/axis", _INT32, batch_dims, waits=waited_for, device=node.device)
            yield axis
            gather: dict[str, Attr] = {
                "Tparams": dtype,
                "Tindices": node.attrs["Tindices"],
                "Taxis": _INT32,
                "batch_dims": batch_dims,
            }
            inputs = (*node.data_inputs, output(axis, 0), *node.waits)
            yield replace(node, op="GatherV2", inputs=inputs, attrs=gather)
        elif node.op == "ResourceGatherNd":
            yield replace(node, op="GatherNd", attrs={"Tparams": dtype, "Tindices": node.attrs["Tindices"]})
        elif node.op == "ReadVariableOp":
            yield replace(node, op="Identity", attrs={"T": dtype})
        else:
            yield replace(node, attrs={**node.attrs, "T": dtype})


def tensor_uses(nodes: Iterable[Node]) -> Mapping[str, list[Use]]:
    """Tensor reference → nodes that read it, each with the position of the data input."""
    uses: dict[str, list[Use]] = {}
    for node in nodes:
        for k, ref in enumerate(node.data_inputs):
            uses.setdefault(ref, []).append((node, k))
    return uses


def _replace_items(attrs: dict[str, Attr], key: str, items: Mapping[int, Attr]) -> None:
    listed = attrs.get(key)
    if isinstance(listed, tuple):
        attrs[key] = tuple(items.get(k, item) for k, item in enumerate(listed))


def _body_ref(node: Node, index: int) -> str:
    return f"{node.name}:{_SWITCHED[index]}:0" if node.op == "Switch" else f"{node.name}:output:{index}"


def graph_ref(node: Node, index: int) -> str:
    """Reference to an output of a node of a graph."""
    return tensor(node.name, index)


def with_values(
    graph: TrainGraph,
    variables: Sequence[Variable],
    prior: Mapping[str, Sequence[str]],
    values: Mapping[tuple[str, int | None], str],
    replaced: Mapping[str, Node],
) -> Iterator[Node]:
    """Nodes of a step in which reads of these copies use values that other replicas own.

    Args:
        prior: handle → nodes that read a copy.
        replaced: name → node that replaces it.
    """
    variable_of = {name: v for v in variables for name in prior[v.handle]}
    arguments = ValueArguments(graph.graph)
    for node in graph.graph.nodes:
        read = variable_of.get(node.name)
        if node.name in replaced:
            yield replaced[node.name]
        elif read is None:
            yield node
        else:
            inputs = (values[read.name, read.rank], *node.inputs[1:])
            value = {0: (read.dtype, read.shape)}
            yield from arguments.with_values(node.changed(inputs=inputs), value, graph_ref)
