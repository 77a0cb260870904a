"""Gradients of variables that are cut: each part gets its range of the values, or the rows with its ids."""

from collections.abc import Iterator, Sequence

from strategies.ir.graph import Graph, Node, Shape
from strategies.ir.train_graph import Boundary
from strategies.numerics.parts import split_parts, split_rows
from strategies.passes.partition.names import PartNames
from strategies.passes.partition.snippets import PartSnippets
from strategies.tf_bridge.snippet import TensorSpec, trace


class PartGradients:
    """Makes a boundary for each part in place of that of the whole."""

    def __init__(self, graph: Graph, names: PartNames, snippets: PartSnippets) -> None:
        self._graph = graph
        self._names = names
        self._snippets = snippets

    def split(self, node: Node) -> Iterator[Node]:
        """Nodes of the parts' gradients, in place of the node of a gradient's values.

        Of a sparse gradient the ids are made too, whose own node is to be left out.
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
        """A node of a boundary for each part, which takes that part's tensor."""
        for index, ref in enumerate(refs):
            waits = self._names.waits(node, None, index)
            yield node.changed(name=self._names.copy(node.name, index), inputs=(ref, *waits))
