"""A worker's examples, split into its shards."""

from collections.abc import Sequence

from strategies.ir.graph import Node
from strategies.ir.train_graph import BatchInput
from strategies.numerics.combine import split_examples
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import Shard


def split_node(placeholder: str) -> str:
    """Name of the node that splits what is fed to a placeholder, where there are several shards."""
    return f"split/{placeholder}/split"


def split_batch(
    batch: Sequence[BatchInput], shards: Sequence[Shard], device: str
) -> tuple[list[Node], dict[int, dict[str, str]]]:
    """Nodes that split what is fed along axis 0.

    Args:
        device: where what is fed arrives.
    Returns:
        the nodes, and for each rank: placeholder → tensor reference of its shard.
    """
    if len(shards) == 1:
        return [], {shards[0].rank: {b.node: b.node for b in batch}}
    nodes: list[Node] = []
    fed: dict[int, dict[str, str]] = {shard.rank: {} for shard in shards}
    sizes = tuple(shard.examples for shard in shards)
    for b in batch:
        snippet = trace(split_examples, (TensorSpec(dtype=b.dtype),), sizes=sizes)
        added, refs = snippet.splice(split_node(b.node).removesuffix("split"), [b.node], device=device)
        nodes += added
        for shard, ref in zip(shards, refs, strict=True):
            fed[shard.rank][b.node] = ref
    return nodes, fed
