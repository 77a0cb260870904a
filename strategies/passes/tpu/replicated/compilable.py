"""What cores cannot run of a step: shapes that depend on data, tables of keys, and what is seen outside."""

from collections.abc import Collection, Iterator

from strategies.errors import UnsupportedError
from strategies.ir.functions import reachable_functions
from strategies.ir.graph import Graph, Node
from strategies.ir.train_graph import TrainGraph

# Ops whose results have as many rows as the data asks for, by their documentation
# (TensorFlow 2.21, https://www.tensorflow.org/api_docs/python/tf/raw_ops).
_DATA_DEPENDENT = frozenset(
    {
        *(
            "DynamicPartition",
            "ListDiff",
            "NonMaxSuppressionV3",
            "NonMaxSuppressionV4",
            "NonMaxSuppressionV5",
        ),
        *("Unique", "UniqueV2", "UniqueWithCounts", "UniqueWithCountsV2", "Where"),
        *("DenseToDenseSetOperation", "DenseToSparseSetOperation", "SparseToSparseSetOperation"),
        *("SparseReshape", "SparseSlice", "SparseFillEmptyRows", "StringSplit", "StringSplitV2"),
    }
)
# Sums over replicas take these types.
SUMMED = frozenset({"half", "bfloat16", "float", "double", "int32", "uint32"})


def check_compilable(step: TrainGraph, body: Collection[str]) -> None:
    """Refuse a step that no compiler of cores takes.

    Args:
        body: names of its nodes that cores would run.
    Raises:
        UnsupportedError: naming the first thing in the way.
    """
    if step.effects:
        raise _refusal(f"must show nothing, got {step.effects[0]!r}, which prints, writes or saves")
    if step.tables:
        raise _refusal(f"must look nothing up in tables of keys, got {step.tables[0]!r}")
    for b in step.boundaries:
        if b.indices is not None:
            raise _refusal(
                f"variable {b.variable!r} must have dense gradients, got rows, as many as ids differ"
            )
        if b.dtype not in SUMMED:
            types = ", ".join(sorted(SUMMED))
            raise _refusal(
                f"variable {b.variable!r} must be of a type that cores sum ({types}), got {b.dtype}",
                way_out="give it one of these, or compare it",
            )
    for where, node in _nodes(step.graph, body):
        if node.op in _DATA_DEPENDENT:
            raise _refusal(f"{where}node {node.name!r} must have a result of known shape, got {node.op}")


def _nodes(graph: Graph, body: Collection[str]) -> Iterator[tuple[str, Node]]:
    own = [node for node in graph.nodes if node.name in body]
    for node in own:
        yield "", node
    for name in sorted(reachable_functions(own, graph.functions)):
        for node in graph.functions[name].nodes:
            yield f"function {name!r}, ", node


def _refusal(rule: str, way_out: str = "compare it") -> UnsupportedError:
    return UnsupportedError(
        f"a step for TPU cores: {rule}; {way_out} by all-reduce or sharded-update instead"
    )
