"""Nodes of an update as each part of a variable has them."""

from collections.abc import Iterator, Mapping, Sequence

from strategies.ir.graph import Attr, DType, Node, Shape
from strategies.ir.part_facts import Outcome, PartUse
from strategies.numerics.parts import split_parts, total
from strategies.passes.part_names import PartNames
from strategies.passes.part_snippets import PartSnippets
from strategies.tf_bridge.constants import constant
from strategies.tf_bridge.snippet import TensorSpec, trace

_BOOL = DType("bool")


class PartUpdates:
    """Copies the nodes of an update.

    Attributes:
        shared: nodes made between copies of several parts, whose updates all need them.
    """

    def __init__(self, names: PartNames, outcomes: Mapping[str, Outcome], snippets: PartSnippets) -> None:
        self._names = names
        self._outcomes = outcomes
        self._snippets = snippets
        self.shared: list[str] = []

    def copies(self, node: Node) -> Iterator[Node]:
        """A node of the update once for each part; the sum over them, where all of it is needed."""
        names, outcome = self._names, self._outcomes[node.name]
        sliced = {}
        for k, swap in outcome.swaps.items():
            if swap.use is PartUse.SLICE:
                sizes = names.cuts[outcome.variable].sizes
                snippet = trace(split_parts, (TensorSpec(dtype=swap.dtype),), axis=swap.axis, sizes=sizes)
                made, sliced[k] = self._snippets.splice(
                    snippet, f"slice/{node.name}/{k}/", [node.data_inputs[k]]
                )
                yield from self._for_all(made)
        copies = []
        for index in range(names.n_parts(outcome.variable)):
            data = []
            for k, ref in enumerate(node.data_inputs):
                if k in sliced:
                    data.append(sliced[k][index])
                elif k in outcome.swaps:
                    measure = self._measure(node, k, index)
                    yield measure
                    data.append(measure.name)
                else:
                    data.append(names.ref(ref, index))
            waits = names.waits(node, outcome.variable, index)
            copies.append(
                node.changed(
                    name=names.part(index, node.name), inputs=(*data, *waits), attrs=_of_any_shape(node)
                )
            )
        yield from copies
        if outcome.combine is not None:
            dtype = node.attrs.get("T", _BOOL)
            assert isinstance(dtype, DType)
            snippet = trace(total, (TensorSpec(dtype=dtype),) * len(copies), how=outcome.combine)
            refs = [copy.name for copy in copies]
            yield from self._for_all(
                self._snippets.in_place(node, snippet, f"total/{node.name}/", refs, dtype)
            )

    def _for_all(self, made: Sequence[Node]) -> Sequence[Node]:
        self.shared += [node.name for node in made]
        return made

    def _measure(self, node: Node, k: int, index: int) -> Node:
        """A part's length or shape as a constant."""
        outcome = self._outcomes[node.name]
        shape = self._names.part_shape(outcome.variable, index)
        swap = outcome.swaps[k]
        value: int | Sequence[int] = shape[0] if swap.use is PartUse.LENGTH else shape
        return constant(self._names.measure(index, node.name, k), value, swap.dtype, "")


def _of_any_shape(node: Node) -> Mapping[str, Attr]:
    """Its attributes, which tell of no shape that a copy would not have."""
    shapes = node.attrs.get("output_shapes")
    if not isinstance(shapes, tuple):
        return node.attrs
    return {**node.attrs, "output_shapes": tuple(Shape(None) for _ in shapes)}
