"""Compressed push: what workers push to servers goes through the compressor once."""

from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.ir.train_graph import Contribution, TrainGraph
from strategies.numerics.compressed_sums import decode_one, encode_one, payload_dtype
from strategies.passes.collectives.buckets import static_dims
from strategies.passes.compression.encoders import Encoders
from strategies.passes.replicate.rewire import sync_prefix
from strategies.passes.task_plan import TaskPlan
from strategies.tf_bridge.attrs import dtype_number
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressedPush:
    """Encode on the worker what it pushes, and decode it on the server, which adds decoded values up."""

    name: ClassVar[str] = "compressed-push"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        if topology.n_tasks == 1:
            return graph
        owners = tuple(topology.local_replicas(task)[0].rank for task in range(topology.n_tasks))
        encoders = Encoders.of(graph, self.plan.compressions("servers"), owners, shared=False, n_terms=1)
        if not encoders.gradients:
            return graph
        host = topology.host_device(self.plan.task)
        combined: dict[str, Contribution] = {}
        for b in encoders.gradients:
            codec = encoders.codec(b)
            (payload,) = encoders.encode(encode_one, [b], f"{sync_prefix(b)}/encode/", host, codec=codec)
            decode = trace(
                decode_one,
                (TensorSpec(dtype=payload_dtype(codec)),),
                dims=static_dims(b),
                dtype=dtype_number(b.dtype),
                codec=codec,
            )
            server = topology.host_device(self.plan.destinations[b.variable])
            (values,) = encoders.splice(decode, f"{sync_prefix(b)}/decode/", [payload], server)
            combined[b.values] = replace(b.contributions[0], values=values)
        return encoders.into(graph, combined)
