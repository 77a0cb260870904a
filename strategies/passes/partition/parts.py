"""Reads, gradients and updates of the parts of a cut variable."""

from collections.abc import Iterator, Mapping, Sequence

from strategies.ir.graph import Attr, DType, Graph, Node, Shape, producer
from strategies.ir.partitioning.facts import Fact, FactKind, PartUse, RuleOutcome
from strategies.ir.partitioning.propagate import lookup_form
from strategies.ir.tensor_proto import const
from strategies.ir.train_graph import Boundary
from strategies.ir.variable import Variable
from strategies.numerics.parts import join_parts, split_ids, split_parts, split_rows, stitch_rows, total
from strategies.passes.partition.names import PartNames, PartSnippets
from strategies.tf_bridge.snippet import TensorSpec, trace

_INT32 = DType("int32")


class PartReads:
    """Makes nodes that read all parts and join the results.

    Args:
        facts: tensor reference → fact about its relation to the parts.
    """

    def __init__(
        self, graph: Graph, names: PartNames, facts: Mapping[str, Fact], snippets: PartSnippets
    ) -> None:
        self._graph = graph
        self._names = names
        self._facts = facts
        self._snippets = snippets
        self._joined: dict[str, str] = {}

    def read(self, node: Node) -> Iterator[Node]:
        """Read the parts and join them under the name of a node that reads a cut variable outside updates."""
        names = self._names
        variable = names.handles[producer(node.data_inputs[0])]
        if node.op == "VariableShape":
            out_type = node.attrs.get("out_type", _INT32)
            assert isinstance(out_type, DType)
            yield const(node.name, out_type, variable.shape.dims or (), device=node.device)
        elif node.op == "ReadVariableOp":
            cut = names.cuts[variable.name]
            copies = self._part_reads(node, variable, [()] * cut.n)
            yield from copies
            snippet = trace(join_parts, (TensorSpec(dtype=variable.dtype),) * cut.n, axis=cut.axis)
            refs = [copy.name for copy in copies]
            yield from self._snippets.in_place(node, snippet, f"join/{node.name}/", refs, variable.dtype)
        else:
            yield from self._lookup(node, variable)

    def _lookup(self, node: Node, variable: Variable) -> Iterator[Node]:
        form = lookup_form(node, self._names.cuts[variable.name].axis)
        yield from (self._columns if form == "columns" else self._rows)(node, variable)

    def _columns(self, node: Node, variable: Variable) -> Iterator[Node]:
        cut, dims = self._names.cuts[variable.name], variable.shape.dims or ()
        copies = self._part_reads(node, variable, [node.data_inputs[1:]] * cut.n)
        yield from copies
        # The axes of a row follow those of the ids, so that the axis is counted from the end.
        specs = (TensorSpec(dtype=variable.dtype),) * cut.n
        snippet = trace(join_parts, specs, axis=cut.axis - len(dims))
        refs = [copy.name for copy in copies]
        yield from self._snippets.in_place(node, snippet, f"join/{node.name}/", refs, variable.dtype)

    def _rows(self, node: Node, variable: Variable) -> Iterator[Node]:
        cut, dims = self._names.cuts[variable.name], variable.shape.dims or ()
        ids, index_dtype = node.data_inputs[1], node.attrs["Tindices"]
        assert isinstance(index_dtype, DType)
        route = trace(split_ids, (TensorSpec(dtype=index_dtype),), starts=cut.starts)
        routed, refs = self._snippets.splice(route, f"route/{node.name}/", [ids])
        yield from routed
        local, places = refs[: cut.n], refs[cut.n :]
        copies = self._part_reads(node, variable, [(ref,) for ref in local])
        yield from copies
        rows = TensorSpec(dtype=variable.dtype, shape=Shape((-1, *dims[1:])))
        specs = (TensorSpec(dtype=index_dtype), *(TensorSpec(dtype=_INT32),) * cut.n, *(rows,) * cut.n)
        inputs = [ids, *places, *(copy.name for copy in copies)]
        yield from self._snippets.in_place(
            node, trace(stitch_rows, specs), f"stitch/{node.name}/", inputs, variable.dtype
        )

    def _part_reads(self, node: Node, variable: Variable, beside: Sequence[tuple[str, ...]]) -> list[Node]:
        """Copies of a node that reads a variable, one per part.

        Args:
            beside: for each copy, its inputs in addition to the part's handle.
        """
        names = self._names
        return [
            node.changed(
                name=names.copy(node.name, index),
                inputs=(
                    names.copy(variable.handle, index),
                    *inputs,
                    *names.waits(node, variable.name, index),
                ),
            )
            for index, inputs in enumerate(beside)
        ]

    def single(self, node: Node) -> Iterator[Node]:
        """Node that is not copied, preceded by nodes that join its inputs if these exist as copies only."""
        names = self._names
        if not any(names.owner(producer(ref)) for ref in node.inputs):
            yield node
            return
        data = []
        for ref in node.data_inputs:
            whole = ref
            if names.has_copies_only(producer(ref)):
                nodes, whole = self._whole(ref)
                yield from nodes
            data.append(whole)
        yield node.changed(inputs=(*data, *names.waits(node, None, 0)))

    def _whole(self, ref: str) -> tuple[Sequence[Node], str]:
        """Nodes that join a tensor that exists as copies only (none if each is whole), and the whole."""
        names, name = self._names, producer(ref)
        fact = self._facts.get(ref)
        if fact is None or fact.kind is FactKind.WHOLE:
            return (), names.ref(ref, 0)
        if ref in self._joined:
            return (), self._joined[ref]
        owner = names.owner(name)
        assert owner is not None
        dtype = self._graph.by_name[name].attrs.get("T", names.variables[owner].dtype)
        assert isinstance(dtype, DType)
        n_parts = names.n_parts(owner)
        snippet = trace(join_parts, (TensorSpec(dtype=dtype),) * n_parts, axis=fact.axis)
        ranges = [names.ref(ref, index) for index in range(n_parts)]
        nodes, (joined,) = self._snippets.splice(snippet, f"join/{name}/", ranges)
        self._joined[ref] = joined
        return nodes, joined


class PartGradients:
    """Replaces the boundary of a whole variable by one per part."""

    def __init__(self, graph: Graph, names: PartNames, snippets: PartSnippets) -> None:
        self._graph = graph
        self._names = names
        self._snippets = snippets

    def split(self, node: Node) -> Iterator[Node]:
        """Nodes of the parts' gradients, which replace the node of a gradient's values.

        For a sparse gradient they include the ids; the original node of the ids is to be left out.
        """
        b = self._names.boundaries[node.name]
        return self._dense(b, node) if b.indices is None else self._sparse(b, node, b.indices)

    def _dense(self, b: Boundary, values: Node) -> Iterator[Node]:
        cut = self._names.cuts[b.variable]
        snippet = trace(split_parts, (TensorSpec(dtype=b.dtype),), axis=cut.axis, sizes=cut.sizes)
        nodes, refs = self._snippets.splice(snippet, f"split/{b.values}/", values.data_inputs)
        yield from nodes
        yield from self._copies(values, refs)

    def _sparse(self, b: Boundary, values: Node, indices: str) -> Iterator[Node]:
        cut, ids = self._names.cuts[b.variable], self._graph.by_name[indices]
        assert b.index_dtype is not None
        rows = TensorSpec(dtype=b.dtype, shape=Shape((-1, *(b.shape.dims or ())[1:])))
        specs = (rows, TensorSpec(dtype=b.index_dtype, shape=Shape((-1,))))
        snippet = trace(split_rows, specs, starts=cut.starts)
        whole = [values.data_inputs[0], ids.data_inputs[0]]
        nodes, refs = self._snippets.splice(snippet, f"split/{b.values}/", whole)
        yield from nodes
        yield from self._copies(values, refs[: cut.n])
        yield from self._copies(ids, refs[cut.n :])

    def _copies(self, node: Node, refs: Sequence[str]) -> Iterator[Node]:
        for index, ref in enumerate(refs):
            waits = self._names.waits(node, None, index)
            yield node.changed(name=self._names.copy(node.name, index), inputs=(ref, *waits))


_BOOL = DType("bool")


class PartUpdates:
    """Copies the nodes of an update.

    Attributes:
        shared: nodes so far that connect copies of several parts: the updates of all parts need them.
    """

    def __init__(self, names: PartNames, outcomes: Mapping[str, RuleOutcome], snippets: PartSnippets) -> None:
        self._names = names
        self._outcomes = outcomes
        self._snippets = snippets
        self.shared: list[str] = []

    def copies(self, node: Node) -> Iterator[Node]:
        """Copies of an update's node, one per part, and nodes that join their results where needed."""
        outcome = self._outcomes[node.name]
        slices, sliced = self._slices(node, outcome)
        yield from self._for_all(slices)
        indices = range(self._names.n_parts(outcome.variable))
        for index in indices:
            yield from self._constants(node, outcome, index)
        copies = [self._copy(node, outcome, index, sliced) for index in indices]
        yield from copies
        if outcome.combine is not None:
            yield from self._for_all(self._total(node, outcome.combine, copies))

    def _for_all(self, nodes: Sequence[Node]) -> Sequence[Node]:
        self.shared += [node.name for node in nodes]
        return nodes

    def _slices(self, node: Node, outcome: RuleOutcome) -> tuple[list[Node], dict[int, tuple[str, ...]]]:
        """Nodes that slice inputs for the copies; data input → range of each part."""
        sizes = self._names.cuts[outcome.variable].sizes
        nodes: list[Node] = []
        sliced: dict[int, tuple[str, ...]] = {}
        for k, swap in outcome.swaps.items():
            if swap.use is PartUse.SLICE:
                snippet = trace(split_parts, (TensorSpec(dtype=swap.dtype),), axis=swap.axis, sizes=sizes)
                prefix = f"slice/{node.name}/{k}/"
                spliced, sliced[k] = self._snippets.splice(snippet, prefix, [node.data_inputs[k]])
                nodes += spliced
        return nodes, sliced

    def _constants(self, node: Node, outcome: RuleOutcome, index: int) -> Iterator[Node]:
        shape = self._names.part_shape(outcome.variable, index)
        for k, swap in sorted(outcome.swaps.items()):
            if swap.use is not PartUse.SLICE:
                value: int | Sequence[int] = shape[0] if swap.use is PartUse.LENGTH else shape
                yield const(self._names.constant(node.name, k, index), swap.dtype, value)

    def _copy(
        self, node: Node, outcome: RuleOutcome, index: int, sliced: Mapping[int, tuple[str, ...]]
    ) -> Node:
        names = self._names
        data = []
        for k, ref in enumerate(node.data_inputs):
            if k in sliced:
                data.append(sliced[k][index])
            elif k in outcome.swaps:
                data.append(names.constant(node.name, k, index))
            else:
                data.append(names.ref(ref, index))
        waits = names.waits(node, outcome.variable, index)
        return node.changed(
            name=names.copy(node.name, index), inputs=(*data, *waits), attrs=_of_any_shape(node)
        )

    def _total(self, node: Node, how: str, copies: Sequence[Node]) -> list[Node]:
        dtype = node.attrs.get("T", _BOOL)
        assert isinstance(dtype, DType)
        snippet = trace(total, (TensorSpec(dtype=dtype),) * len(copies), how=how)
        refs = [copy.name for copy in copies]
        return self._snippets.in_place(node, snippet, f"total/{node.name}/", refs, dtype)


def _of_any_shape(node: Node) -> Mapping[str, Attr]:
    shapes = node.attrs.get("output_shapes")
    if not isinstance(shapes, tuple):
        return node.attrs
    return {**node.attrs, "output_shapes": tuple(Shape(None) for _ in shapes)}
