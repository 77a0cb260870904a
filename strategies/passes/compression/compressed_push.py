"""Compressed push: what workers push to servers goes through the compressor once."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.ir.train_graph import Contribution, TrainGraph
from strategies.numerics.compressed_sums import decode_one, encode_one, payload_dtype
from strategies.numerics.compressors import codec_of
from strategies.passes.collectives.buckets import static_dims
from strategies.passes.compression.compressed_gradients import (
    Additions,
    compressed_boundaries,
    gradient_spec,
    memories_of,
    state_specs,
)
from strategies.passes.replicate.rewire import captured_name, sync_prefix
from strategies.passes.task_plan import TaskPlan
from strategies.plan.schema import Compression
from strategies.tf_bridge.attrs import dtype_number
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressedPush:
    """Encode on the worker what it pushes, and decode it on the server, which adds decoded values up.

    Attributes:
        destinations: variable → task that serves it.
        compressions: variable → compressor of its gradient.
    """

    name: ClassVar[str] = "compressed-push"
    task: int
    destinations: Mapping[str, int]
    compressions: Mapping[str, Compression]

    @classmethod
    def of(cls, plan: TaskPlan) -> "CompressedPush | None":
        """Where what servers get is compressed."""
        compressions = plan.compressions("servers")
        if not plan.is_served or not compressions:
            return None
        return cls(task=plan.task, destinations=plan.destinations, compressions=compressions)

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        """The step whose contributions have gone through the compressor once."""
        chosen = compressed_boundaries(graph, self.compressions) if topology.n_tasks > 1 else []
        if not chosen:
            return graph
        host = topology.host_device(self.task)
        owners = tuple(topology.local_replicas(task)[0].rank for task in range(topology.n_tasks))
        memories = memories_of(graph, chosen, owners=owners, shared=False)
        combined: dict[str, Contribution] = {}
        additions = Additions()
        for b in chosen:
            codec = codec_of(self.compressions[b.variable], n_terms=1)
            contribution = b.contributions[0]
            kept = memories[captured_name(b)].states(b, codec, contribution.rank, host)
            encode = trace(encode_one, (gradient_spec(b), *state_specs(kept)), codec=codec)
            nodes, (payload, *after) = encode.splice(
                f"{sync_prefix(b)}/encode/", [contribution.values, *(k.value for k in kept)], device=host
            )
            additions.add(nodes, kept, after)
            decode = trace(
                decode_one,
                (TensorSpec(dtype=payload_dtype(codec)),),
                dims=static_dims(b),
                dtype=dtype_number(b.dtype),
                codec=codec,
            )
            decoded, (values,) = decode.splice(
                f"{sync_prefix(b)}/decode/",
                [payload],
                device=topology.host_device(self.destinations[b.variable]),
            )
            additions.nodes.extend(decoded)
            combined[b.values] = replace(contribution, values=values)
        return additions.into(graph, combined)
