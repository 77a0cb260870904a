"""Types that a captured step computes in, by the operations that take most of its time."""

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import chain

from strategies.ir.graph import DType, Graph, Node

# Products of matrices and convolutions, with what their gradients are made of.
_PRODUCTS = frozenset(
    {
        "BatchMatMul",
        "BatchMatMulV2",
        "BatchMatMulV3",
        "Conv2D",
        "Conv2DBackpropFilter",
        "Conv2DBackpropInput",
        "Conv3D",
        "Conv3DBackpropFilterV2",
        "Conv3DBackpropInputV2",
        "DepthwiseConv2dNative",
        "DepthwiseConv2dNativeBackpropFilter",
        "DepthwiseConv2dNativeBackpropInput",
        "Einsum",
        "MatMul",
    }
)
_ELEMENTWISE = frozenset(
    {
        "AddV2",
        "BiasAdd",
        "Exp",
        "Mean",
        "Mul",
        "RealDiv",
        "Relu",
        "Sigmoid",
        "Softmax",
        "Square",
        "Sub",
        "Sum",
        "Tanh",
    }
)


def types_of_products(graph: Graph) -> Mapping[DType, int]:
    """Type → how many products of matrices and convolutions compute in it, gradients included.

    A step that has none tells of its elementwise arithmetic instead.
    """
    return Counter(_types(graph, _PRODUCTS)) or Counter(_types(graph, _ELEMENTWISE))


def _types(graph: Graph, ops: frozenset[str]) -> Iterator[DType]:
    nodes: Iterator[Node] = chain(graph.nodes, *(function.nodes for function in graph.functions.values()))
    for node in nodes:
        dtype = node.attrs.get("T")
        if node.op in ops and isinstance(dtype, DType):
            yield dtype
