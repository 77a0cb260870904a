"""The nodes of an update, once for each part of a variable."""

from collections.abc import Iterator, Mapping, Sequence

from strategies.ir.graph import Attr, DType, Node, Shape
from strategies.ir.partitioning.facts import PartUse, RuleOutcome
from strategies.numerics.parts import split_parts, total
from strategies.passes.partition.names import PartNames
from strategies.passes.partition.snippets import PartSnippets
from strategies.tf_bridge.attrs import constant
from strategies.tf_bridge.snippet import TensorSpec, trace

_BOOL = DType("bool")


class PartUpdates:
    """Copies the nodes of an update.

    Attributes:
        shared: nodes made so far that stand between copies of several parts: the updates of all need them.
    """

    def __init__(self, names: PartNames, outcomes: Mapping[str, RuleOutcome], snippets: PartSnippets) -> None:
        self._names = names
        self._outcomes = outcomes
        self._snippets = snippets
        self.shared: list[str] = []

    def copies(self, node: Node) -> Iterator[Node]:
        """A node of the update once for each part; what joins their results, where all of it is needed."""
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
        """Nodes that slice what copies take a range of; data input → the range of each part."""
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
        """Lengths and shapes of a part, which its copy takes in place of the whole's."""
        shape = self._names.part_shape(outcome.variable, index)
        for k, swap in sorted(outcome.swaps.items()):
            if swap.use is not PartUse.SLICE:
                value: int | Sequence[int] = shape[0] if swap.use is PartUse.LENGTH else shape
                yield constant(self._names.constant(node.name, k, index), value, swap.dtype, "")

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
        """What gives, under a node's name, the one result that the results of its copies make."""
        dtype = node.attrs.get("T", _BOOL)
        assert isinstance(dtype, DType)
        snippet = trace(total, (TensorSpec(dtype=dtype),) * len(copies), how=how)
        refs = [copy.name for copy in copies]
        return self._snippets.in_place(node, snippet, f"total/{node.name}/", refs, dtype)


def _of_any_shape(node: Node) -> Mapping[str, Attr]:
    """Its attributes, which tell of no shape that a copy would not have."""
    shapes = node.attrs.get("output_shapes")
    if not isinstance(shapes, tuple):
        return node.attrs
    return {**node.attrs, "output_shapes": tuple(Shape(None) for _ in shapes)}
