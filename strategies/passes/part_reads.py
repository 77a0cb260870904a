"""Where the whole of a cut variable meets its parts: reads and lookups are joined, gradients are split."""

from collections.abc import Iterator, Mapping, Sequence

from strategies.ir.graph import DType, Graph, Node, Shape, producer
from strategies.ir.part_facts import Fact, Kind
from strategies.ir.train_graph import Variable
from strategies.numerics.parts import join_parts, split_ids, split_parts, split_rows, stitch_rows
from strategies.passes.part_names import PartNames
from strategies.passes.part_snippets import PartSnippets
from strategies.tf_bridge.constants import constant
from strategies.tf_bridge.snippet import TensorSpec, trace

_INT32 = DType("int32")


class PartReads:
    """Makes what stands between the step and the parts.

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
        """A node outside of the update that reads a cut variable, as reads of all parts."""
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
        """Rows by id, each from the part that has it."""
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
        found = [ids, *places, *(copy.name for copy in copies)]
        yield from self._snippets.in_place(
            node, trace(stitch_rows, specs), f"stitch/{node.name}/", found, variable.dtype
        )

    def _part_reads(self, node: Node, variable: Variable, of: Sequence[tuple[str, ...]]) -> list[Node]:
        """A node that reads a variable, of each part; it takes these tensors beside the part's handle."""
        names = self._names
        return [
            node.changed(
                name=names.part(index, node.name),
                inputs=(
                    names.part(index, variable.handle),
                    *taken,
                    *names.waits(node, variable.name, index),
                ),
            )
            for index, taken in enumerate(of)
        ]

    def outside(self, node: Node) -> Iterator[Node]:
        """A node that exists once; ranges that it takes are joined for it."""
        names = self._names
        if not any(names.owner(producer(ref)) for ref in node.inputs):
            yield node
            return
        data = []
        for ref in node.data_inputs:
            whole = ref
            if names.is_apart(producer(ref)):
                made, whole = self._whole(ref)
                yield from made
            data.append(whole)
        yield node.changed(inputs=(*data, *names.waits(node, None, 0)))

    def _whole(self, ref: str) -> tuple[Sequence[Node], str]:
        """What a tensor of which each part has a range is in all, with the nodes that join it."""
        names, name = self._names, producer(ref)
        fact = self._facts.get(ref)
        if fact is None or fact.kind is Kind.WHOLE:
            return (), names.ref(ref, 0)  # every copy has computed it
        if ref in self._joined:
            return (), self._joined[ref]
        owner = names.owner(name)
        assert owner is not None
        dtype = self._graph.by_name[name].attrs.get("T", names.variables[owner].dtype)
        assert isinstance(dtype, DType)
        n_parts = names.n_parts(owner)
        snippet = trace(join_parts, (TensorSpec(dtype=dtype),) * n_parts, axis=fact.axis)
        ranges = [names.ref(ref, index) for index in range(n_parts)]
        made, (joined,) = self._snippets.splice(snippet, f"join/{name}/", ranges)
        self._joined[ref] = joined
        return made, joined

    def gradient(self, node: Node) -> Iterator[Node]:
        """A boundary of each part, for the node of a gradient's values; with it that of its ids."""
        b = self._names.boundaries[node.name]
        cut = self._names.cuts[b.variable]
        whole = node.data_inputs[0]
        if b.indices is None:
            snippet = trace(split_parts, (TensorSpec(dtype=b.dtype),), axis=cut.axis, sizes=cut.sizes)
            made, refs = self._snippets.splice(snippet, f"split/{b.values}/", [whole])
            yield from made
            yield from self._boundaries(node, refs)
            return
        assert b.index_dtype is not None
        ids = self._graph.by_name[b.indices]
        rows = TensorSpec(dtype=b.dtype, shape=Shape((-1, *(b.shape.dims or ())[1:])))
        specs = (rows, TensorSpec(dtype=b.index_dtype, shape=Shape((-1,))))
        snippet = trace(split_rows, specs, starts=cut.starts)
        made, refs = self._snippets.splice(snippet, f"split/{b.values}/", [whole, ids.data_inputs[0]])
        yield from made
        yield from self._boundaries(node, refs[: cut.n])
        yield from self._boundaries(ids, refs[cut.n :])

    def _boundaries(self, node: Node, refs: Sequence[str]) -> Iterator[Node]:
        names = self._names
        for index, ref in enumerate(refs):
            yield node.changed(
                name=names.part(index, node.name), inputs=(ref, *names.waits(node, None, index))
            )
