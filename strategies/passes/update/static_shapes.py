"""Shapes in an update as far as its nodes show them: a scalar, or a variable's own."""

from strategies.ir.graph import Graph, Shape, output_index, producer
from strategies.ir.ops import ELEMENTWISE
from strategies.ir.train_graph import TrainGraph
from strategies.ir.variable import Variable
from strategies.tf_bridge.attrs import constant_shape


class StaticShapes:
    """Shapes of the tensors of a step, where they are certain."""

    def __init__(self, step: TrainGraph) -> None:
        self._graph: Graph = step.graph
        self._known = {v.handle: v.shape for v in step.variables}
        self._gradients = {b.values: b.shape for b in step.gradients() if b.indices is None}
        self._scalars: dict[str, bool] = {}

    def is_scalar(self, ref: str) -> bool:
        """Return True if a tensor certainly is a scalar."""
        if ref not in self._scalars:
            self._scalars[ref] = self._is_scalar(ref)
        return self._scalars[ref]

    def _is_scalar(self, ref: str) -> bool:
        node = self._graph.by_name[producer(ref)]
        if (known := self._shape(ref)) is not None:
            return known.dims == ()
        # Half the sum of squares, of whatever shape.
        return node.op == "L2Loss" or (
            node.op in ELEMENTWISE and all(self.is_scalar(each) for each in node.data_inputs)
        )

    def is_full(self, ref: str, variable: Variable) -> bool:
        """Return True if a tensor, which is not larger than a variable, certainly has its shape."""
        if (known := self._shape(ref)) is not None:
            return known == variable.shape
        node = self._graph.by_name[producer(ref)]
        return node.op in ELEMENTWISE and any(self.is_full(each, variable) for each in node.data_inputs)

    def _shape(self, ref: str) -> Shape | None:
        if ref in self._gradients:
            return self._gradients[ref]
        node = self._graph.by_name[producer(ref)]
        if node.op == "ReadVariableOp":
            return self._known.get(producer(node.data_inputs[0]))
        declared = node.attrs.get("output_shapes")
        if isinstance(declared, tuple) and declared:
            shape = declared[output_index(ref)]
            return shape if isinstance(shape, Shape) and shape.dims is not None else None
        return constant_shape(node)
