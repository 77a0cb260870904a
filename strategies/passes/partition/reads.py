"""Nodes that read a variable that is cut, or take what only its parts have: they get all parts, joined."""

from collections.abc import Iterator, Mapping, Sequence

from strategies.ir.graph import DType, Graph, Node, Shape, producer
from strategies.ir.partitioning.facts import Fact, FactKind
from strategies.ir.partitioning.propagate import lookup_form
from strategies.ir.variable import Variable
from strategies.numerics.parts import join_parts, split_ids, stitch_rows
from strategies.passes.partition.names import PartNames
from strategies.passes.partition.snippets import PartSnippets
from strategies.tf_bridge.attrs import constant
from strategies.tf_bridge.snippet import TensorSpec, trace

_INT32 = DType("int32")


class PartReads:
    """Makes nodes that read all parts and join what they have.

    Args:
        facts: tensor reference → what it is to the parts.
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
        """The parts read and joined under the name of a node that reads a cut variable outside of updates."""
        names = self._names
        variable = names.handles[producer(node.data_inputs[0])]
        if node.op == "VariableShape":
            out_type = node.attrs.get("out_type", _INT32)
            assert isinstance(out_type, DType)
            yield constant(node.name, variable.shape.dims or (), out_type, node.device)
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
        """Rows by id, from parts that have some of the rows, or some of every row."""
        form = lookup_form(node, self._names.cuts[variable.name].axis)
        yield from (self._columns if form == "columns" else self._rows)(node, variable)

    def _columns(self, node: Node, variable: Variable) -> Iterator[Node]:
        """What every part has of the rows of all ids, joined; ids may have any rank."""
        cut, dims = self._names.cuts[variable.name], variable.shape.dims or ()
        copies = self._part_reads(node, variable, [node.data_inputs[1:]] * cut.n)
        yield from copies
        # Behind the ids' own axes come those of a row, so that the axis is known from the end.
        specs = (TensorSpec(dtype=variable.dtype),) * cut.n
        snippet = trace(join_parts, specs, axis=cut.axis - len(dims))
        refs = [copy.name for copy in copies]
        yield from self._snippets.in_place(node, snippet, f"join/{node.name}/", refs, variable.dtype)

    def _rows(self, node: Node, variable: Variable) -> Iterator[Node]:
        """Each id's row from the part that has it."""
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
        """Copies of a node that reads a variable, one for each part.

        Args:
            beside: what each copy takes beside its part's handle.
        """
        names = self._names
        return [
            node.changed(
                name=names.copy(node.name, index),
                inputs=(
                    names.copy(variable.handle, index),
                    *taken,
                    *names.waits(node, variable.name, index),
                ),
            )
            for index, taken in enumerate(beside)
        ]

    def single(self, node: Node) -> Iterator[Node]:
        """A node that is not copied, after nodes that join what it takes and only copies have."""
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
        """Nodes that join a tensor which only copies have, none where each has the whole; and the whole."""
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
