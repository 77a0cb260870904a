"""A worker's examples, split over its replicas."""

from collections.abc import Sequence

from strategies.ir.graph import Node
from strategies.ir.train_graph import BatchInput
from strategies.numerics.combine import split_examples
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import Replica


def split_batch(
    batch: Sequence[BatchInput], replicas: Sequence[Replica], device: str
) -> tuple[list[Node], dict[int, dict[str, str]]]:
    """Nodes that split what is fed along axis 0.

    Args:
        device: where what is fed arrives.
    Returns:
        the nodes, and for each rank: placeholder → tensor reference of its shard.
    """
    if len(replicas) == 1:
        return [], {replicas[0].rank: {b.node: b.node for b in batch}}
    nodes: list[Node] = []
    shards: dict[int, dict[str, str]] = {replica.rank: {} for replica in replicas}
    sizes = tuple(replica.examples for replica in replicas)
    for b in batch:
        snippet = trace(split_examples, (TensorSpec(dtype=b.dtype),), sizes=sizes)
        added, refs = snippet.splice(f"split/{b.node}/", [b.node], device=device)
        nodes += added
        for replica, ref in zip(replicas, refs, strict=True):
            shards[replica.rank][b.node] = ref
    return nodes, shards
