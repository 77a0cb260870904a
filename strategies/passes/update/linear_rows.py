"""Sparse gradients that updates use linearly: summing rows of equal ids first changes no result."""

from collections.abc import Callable, Iterator
from enum import Enum, auto

from strategies.ir.graph import Graph, Node, Shape, output_index, producer
from strategies.ir.ops import ELEMENTWISE
from strategies.ir.tensor_proto import constant_dims
from strategies.ir.train_graph import Boundary, TrainGraph
from strategies.ir.traversal import descendants, topological_order
from strategies.ir.variable import Variable


class StaticShapes:
    """Shapes of a step's tensors that are certain."""

    def __init__(self, step: TrainGraph) -> None:
        self._graph: Graph = step.graph
        self._known = {v.handle: v.shape for v in step.variables}
        self._gradients = {b.values: b.shape for b in step.gradients() if b.indices is None}
        self._scalars: dict[str, bool] = {}

    def is_scalar(self, ref: str) -> bool:
        """True if a tensor is certainly a scalar."""
        if ref not in self._scalars:
            self._scalars[ref] = self._is_scalar(ref)
        return self._scalars[ref]

    def _is_scalar(self, ref: str) -> bool:
        node = self._graph.by_name[producer(ref)]
        if (known := self._shape(ref)) is not None:
            return known.dims == ()
        # Half the sum of squares, of whatever shape.
        return node.op == "L2Loss" or (
            node.op in ELEMENTWISE and all(self.is_scalar(data_input) for data_input in node.data_inputs)
        )

    def is_full(self, ref: str, variable: Variable) -> bool:
        """True if a tensor, which is not larger than a variable, certainly has its shape."""
        if (known := self._shape(ref)) is not None:
            return known == variable.shape
        node = self._graph.by_name[producer(ref)]
        return node.op in ELEMENTWISE and any(
            self.is_full(data_input, variable) for data_input in node.data_inputs
        )

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
        dims = constant_dims(node)
        return None if dims is None else Shape(dims)


_SAME = frozenset({"Identity", "Neg", "Snapshot", "StopGradient"})
_SCALED = frozenset({"Mul", "RealDiv", "Div"})
_ADDED_TO_ROWS = frozenset({"ResourceScatterAdd", "ResourceScatterSub"})


class _Kind(Enum):
    """Kinds of tensors that are computed from a sparse gradient."""

    ROWS = auto()
    """Its rows, all multiplied by the same number."""
    IDS = auto()
    """Id of each row."""
    PLACES = auto()
    """Position of each row's id among the distinct ids."""
    OF_SUMS = auto()
    """A value computed from the distinct ids and the sums of their rows."""


def read_linearly(step: TrainGraph) -> frozenset[str]:
    """Variables whose rows reach their updates only as sums over equal ids.

    Rows may be multiplied by scalars that do not depend on them, and are then added to rows of a variable or
    of zeros. Everything else (a square, a norm, a branch, a count of rows) is not linear.
    """
    shapes = StaticShapes(step)
    sparse = [b for b in step.gradients() if b.indices is not None]
    others = {b.variable for b in sparse if not _is_linear(step, b, shapes.is_scalar)}
    return frozenset(b.variable for b in sparse).difference(others)


def _is_linear(step: TrainGraph, b: Boundary, is_scalar: Callable[[str], bool]) -> bool:
    assert b.indices is not None
    kinds = {b.values: _Kind.ROWS, b.indices: _Kind.IDS}
    made_of_rows = descendants(step.graph, kinds, control=False)

    def is_factor(ref: str) -> bool:
        return is_scalar(ref) and producer(ref) not in made_of_rows

    for node in topological_order([step.graph.by_name[name] for name in made_of_rows.difference(kinds)]):
        results = dict(_results(node, kinds, is_factor))
        if None in results.values():
            return False
        kinds |= {ref: kind for ref, kind in results.items() if kind is not None}
    result_tensors = {result.tensor for result in step.results}
    return all(kinds[ref] is _Kind.OF_SUMS for ref in result_tensors.intersection(kinds))


def _results(
    node: Node, kinds: dict[str, _Kind], is_factor: Callable[[str], bool]
) -> Iterator[tuple[str, _Kind | None]]:
    """Kinds of the results of a node that reads these kinds; None for a kind that is not linear."""
    read = [kinds.get(ref) for ref in node.data_inputs]
    if not any(kind in (_Kind.ROWS, _Kind.IDS, _Kind.PLACES) for kind in read):
        return  # control inputs, and values computed from sums
    first = read[0]
    if node.op in _SAME or (node.op == "Cast" and (first is _Kind.IDS or not _narrows(node))):
        yield node.name, first
    elif node.op in ("Unique", "UniqueV2") and first is _Kind.IDS:
        yield node.name, _Kind.OF_SUMS
        yield f"{node.name}:1", _Kind.PLACES
    elif node.op in _SCALED and _Kind.ROWS in read:
        factors = [ref for ref, kind in zip(node.data_inputs, read, strict=True) if kind is not _Kind.ROWS]
        divides = node.op != "Mul" and first is not _Kind.ROWS
        fits = len(factors) == 1 and not divides and is_factor(factors[0])
        yield node.name, _Kind.ROWS if fits else None
    elif node.op == "UnsortedSegmentSum" and first is _Kind.ROWS and read[1] in (_Kind.IDS, _Kind.PLACES):
        yield node.name, _Kind.OF_SUMS
    elif node.op in _ADDED_TO_ROWS and read[1:] == [_Kind.IDS, _Kind.ROWS]:
        return
    else:
        yield node.name, None


def _narrows(node: Node) -> bool:
    """True if a cast rounds, so that a sum of casts differs from the cast of the sum."""
    return (str(node.attrs.get("SrcT")), str(node.attrs.get("DstT"))) not in {
        ("float", "float"),
        ("float", "double"),
        ("double", "double"),
        ("half", "float"),
        ("bfloat16", "float"),
    }
