"""Batches in variables on the replicas' devices; a step selects one by its number."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import tensorflow as tf

from harness.records.conditions import Placement
from harness.worker.counters.gpus import gpu_memory_bytes
from strategies.ir.graph import producer
from strategies.ir.train_graph import BatchInput
from strategies.passes.replicate.replicate import split_node

v1 = tf.compat.v1

STAGED = "staged/"
"""Prefix of all nodes' names in this module."""
NUMBER = f"{STAGED}number"
"""Placeholder, int32 [1]: number of the batch for a step."""
MAX_SHARE = 0.125
"""Largest share of a GPU's memory for staged batches."""
_ON_HOST = ("int32", "string")


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedPart:
    """A component of all batches, or a shard's rows of it, in a variable on the device that uses it.

    Attributes:
        source: tensor of the program that has these values when a batch is fed.
        value: placeholder of all batches, stacked. load: node that assigns them.
        tensor: tensor of the selected batch.
    """

    source: str
    device: str
    dtype: tf.DType
    value: str
    load: str
    tensor: str


def read_staged(
    graph_def: tf.compat.v1.GraphDef, batch: Sequence[BatchInput], device: str
) -> tuple[StagedPart, ...]:
    """Make steps read their batches from variables on their devices; changes the graph in place.

    A slice of the variable has the type and shape of the fed tensor, so the arithmetic stays. Placeholders
    remain, so that the values of a `StagedPart` can be fetched.

    Args:
        device: device of nodes without one.
    Returns:
        Empty if no GPU uses any part; the graph is then unchanged.
    """
    sources = dict(_sources(graph_def, batch))
    fed = {producer(source) for source in sources}
    takers = [
        (node, place, name.removesuffix(":0"), node.device or device)
        for node in graph_def.node
        if node.name not in fed
        for place, name in enumerate(node.input)
        if name.removesuffix(":0") in sources
    ]
    if not any(_type_and_index(own)[0] == "GPU" for *_, own in takers):
        return ()
    parts: dict[tuple[str, str], StagedPart] = {}
    with tf.Graph().as_default() as added:
        number = v1.placeholder(tf.int32, [1], NUMBER)
        for node, place, source, own in takers:
            if (source, own) not in parts:
                prefix = f"{STAGED}{len(parts)}/"
                parts[source, own] = _part(source, own, *sources[source], number, prefix)
            node.input[place] = parts[source, own].tensor
    for node in graph_def.node:
        # Tensors without feeds need no wait.
        waits = [name for name in node.input if name[0] == "^" and name[1:] in fed]
        for name in waits:
            node.input.remove(name)
    for node in added.as_graph_def().node:
        # XLA would compile a slice anew for each number.
        node.attr["_XlaCompile"].b = False
        graph_def.node.append(node)
    return tuple(parts.values())


def placement(on_gpus: Collection[bool]) -> Placement:
    """Memory that holds the batches."""
    return "host" if True not in on_gpus else "mixed" if False in on_gpus else "device"


def on_gpus(parts: Sequence[StagedPart], devices: Sequence[str]) -> set[bool]:
    """True for each staged part in a GPU's memory; TensorFlow keeps 32-bit integers and text on the host.

    Args:
        devices: names of all devices of the session.
    """
    there = set(map(_type_and_index, devices))
    places = ((_type_and_index(part.device), part.dtype.name) for part in parts)
    return {place[0] == "GPU" and place in there and dtype not in _ON_HOST for place, dtype in places}


def too_large(folder: Path, share: float) -> str | None:
    """Reason why staged batches stay on the host; None if GPUs have room for them, or that is unknown.

    Args:
        folder: folder of the global batches. share: this worker's share of their examples.
    """
    memory_bytes = gpu_memory_bytes("total").values()
    least = min(memory_bytes, default=None)
    if least is None:
        return None
    n_bytes = share / len(memory_bytes) * sum(file.stat().st_size for file in folder.glob("*.npy"))
    if n_bytes <= least * MAX_SHARE:
        return None
    return (
        f"staged batches take {n_bytes / 1e9:.3g} GB, more than {MAX_SHARE:.0%} of the {least / 1e9:.3g} GB "
        "of a GPU: they stay on the host, and steps copy their parts; lower batch_size to fit them on the GPU"
    )


def _sources(
    graph_def: tf.compat.v1.GraphDef, batch: Sequence[BatchInput]
) -> Iterator[tuple[str, tuple[tf.DType, tf.TensorShape]]]:
    """Tensors with type and shape for the fed values, or a shard's rows of them."""
    nodes = {node.name: node for node in graph_def.node}
    for b in batch:
        shape = tf.TensorShape(nodes[b.node].attr["shape"].shape)
        dtype = tf.as_dtype(nodes[b.node].attr["dtype"].type)
        yield b.node, (dtype, shape)
        split = nodes.get(split_node(b.node))
        # A fault may change examples before the split.
        if split is None or producer(split.input[0]) != b.node:
            continue
        sizes = tf.make_ndarray(nodes[producer(split.input[1])].attr["value"].tensor)
        for k, size in enumerate(sizes):
            of_shard = shape if shape.rank is None else tf.TensorShape([size, *shape[1:]])
            yield f"{split.name}:{k}".removesuffix(":0"), (dtype, of_shard)


def _part(
    source: str, device: str, dtype: tf.DType, shape: tf.TensorShape, number: tf.Tensor, prefix: str
) -> StagedPart:
    of_all = tf.TensorShape([None]).concatenate(shape)
    value = v1.placeholder(dtype, of_all, f"{prefix}value")
    with tf.device(device):
        handle = tf.raw_ops.VarHandleOp(
            dtype=dtype, shape=of_all, shared_name=f"{prefix}{device}", name=f"{prefix}handle"
        )
        load = tf.raw_ops.AssignVariableOp(resource=handle, value=value, name=f"{prefix}load")
        every = tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype, name=f"{prefix}read")
        # The kernel takes a row of the first axis without a copy, and does not check bounds.
        part = tf.raw_ops.StridedSlice(
            input=every, begin=number, end=number, strides=[1], shrink_axis_mask=1, name=f"{prefix}batch"
        )
    return StagedPart(
        source=source,
        device=device,
        dtype=dtype,
        value=value.op.name,
        load=load.name,
        tensor=part.op.name,
    )


def _type_and_index(device: str) -> tuple[str | None, int | None]:
    spec = tf.DeviceSpec.from_string(device)
    return spec.device_type, spec.device_index
