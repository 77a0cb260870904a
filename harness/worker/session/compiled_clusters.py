"""Clusters that XLA compiles: their operations, and random operations kept outside."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import tensorflow as tf

# The first holds a function that the second runs; without the second, TensorFlow ran it uncompiled.
_COMPILE, _RUN = "xla_compile", "xla_run"
_FRAMING = ("Const", "_Arg", "_Retval")

_DRAWS = re.compile(
    "Random|Rng|TruncatedNormal|StandardNormal|StatefulUniform|Multinomial|Shuffle|CandidateSampler"
)
"""Operations for which XLA would draw other random numbers than TensorFlow's kernels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledClusters:
    """Operations of a step that XLA compiles.

    Attributes:
        n_clusters: number of compiled functions.
        operations: operation → count within clusters.
        n_left: number of operations outside of clusters.
    """

    n_clusters: int
    operations: Mapping[str, int]
    n_left: int

    @property
    def n_compiled(self) -> int:
        return sum(self.operations.values())

    @property
    def draws(self) -> Sequence[str]:
        """Random operations within clusters, which draw other numbers than the captured step."""
        return sorted(filter(_DRAWS.search, self.operations))


def with_same_random_numbers(graph_def: bytes) -> bytes:
    """Graph with its random operations outside of clusters, so that TensorFlow's kernels run them."""
    graph = tf.compat.v1.GraphDef.FromString(graph_def)
    for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
        for node in nodes:
            if _DRAWS.search(node.op):
                node.attr["_XlaCompile"].b = False
    return bytes(graph.SerializeToString())


def clusters_of(runs: Sequence[tf.compat.v1.RunMetadata]) -> CompiledClusters:
    """Clusters of a step that ran compiled.

    Args:
        runs: TensorFlow's metadata of the step and of background runs: executed graphs and operations.
    """
    graphs = [graph for run in runs for graph in run.partition_graphs]
    ran = {
        node.node_name for run in runs for device in run.step_stats.dev_stats for node in device.node_stats
    }
    bodies = {f.signature.name: f.node_def for graph in graphs for f in graph.library.function}
    names = [
        node.attr["function"].func.name
        for graph in graphs
        for node in graph.node
        if node.op == "_XlaCompile" and node.name.replace(_COMPILE, _RUN) in ran
    ]
    inside: Counter[str] = Counter()
    for name in names:
        inside.update(_operations(name, bodies))
    return CompiledClusters(
        n_clusters=len(names), operations=dict(inside), n_left=sum(len(graph.node) for graph in graphs)
    )


def _operations(name: str, bodies: Mapping[str, Sequence[tf.compat.v1.NodeDef]]) -> Iterator[str]:
    """Operations of a function, including those that it calls."""
    for node in bodies.get(name, ()):
        if node.op not in _FRAMING:
            yield node.op
        called = [node.op, *(value.func.name for value in node.attr.values() if value.HasField("func"))]
        for other in called:
            yield from _operations(other, bodies)
