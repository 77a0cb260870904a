"""Gradients in a smaller form between tasks, with what the compressor remembers kept in the graph."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import ClassVar

from strategies.errors import StrategyError
from strategies.ir.boundary import Boundary, Contribution
from strategies.ir.graph import Node
from strategies.ir.train_graph import TrainGraph
from strategies.ir.variable import Variable
from strategies.numerics.compressed_sums import compressed_sum, decode_one, encode_one, n_keys, payload_dtype
from strategies.numerics.compressors.codec import Codec
from strategies.numerics.compressors.table import codec_of
from strategies.passes.collectives.all_reduce import Collective, collectives, static_dims
from strategies.passes.collectives.keys import compressed_keys
from strategies.passes.collectives.members import Members
from strategies.passes.compression.compressor_state import Memory, memories_of
from strategies.passes.replicate.kept_state import KeptState
from strategies.passes.replicate.rewire import captured_name, contribute, sync_prefix
from strategies.passes.task_plan import Between, TaskPlan
from strategies.plan.compressed_payload import payload_bytes
from strategies.plan.schema import Compression
from strategies.tf_bridge.attrs import dtype_number
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import Replica, Topology

_FLOATING = ("half", "bfloat16", "float", "double")


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressedAllReduce:
    """Sum the gradients that have a compressor over all members, a bucket at a time.

    Attributes:
        buckets: names of the variables of each bucket, in the order in which backward makes them ready.
        compressions: variable → compressor of its gradient.
        between: whose gradients are encoded and summed.
    """

    name: ClassVar[str] = "compressed-all-reduce"
    task: int
    buckets: tuple[tuple[str, ...], ...]
    compressions: Mapping[str, Compression]
    between: Between = "replicas"

    @classmethod
    def of(cls, plan: TaskPlan) -> "CompressedAllReduce | None":
        """Where collectives carry compressed gradients."""
        compressions = plan.compressions(served=False)
        if not plan.needs_collectives or not compressions:
            return None
        return cls(task=plan.task, buckets=plan.buckets, compressions=compressions, between=plan.between)

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        """The step with one exchange per bucket and compressor on each local member."""
        gradients = _chosen(graph, self.compressions)
        if not gradients:
            return graph
        members = Members.of(topology, self.between)
        chosen = [b for b in gradients if b.rank in members.ranks]
        exchanges = self._exchanges(chosen, len(members.ranks))
        memories = memories_of(graph, chosen, owners=tuple(members.ranks), shared=True)
        keys = compressed_keys(key for each in exchanges for key in each.key_names)
        combined: dict[str, Contribution] = {}
        additions = _Made()
        for replica in members.local(topology, self.task):
            own = {sync_prefix(b): b for b in chosen if b.rank == replica.rank}
            for exchange in exchanges:
                added, summed = exchange.splice(
                    [own[m] for m in exchange.members],
                    memories,
                    replica,
                    group=members.group,
                    keys=tuple(keys[k] for k in exchange.key_names),
                )
                additions.extend(added)
                combined |= summed
        return additions.into(graph, combined)

    def _exchanges(self, chosen: Sequence[Boundary], n_members: int) -> list["_Exchange"]:
        """Small payloads travel together, however large their gradients are."""
        exchanges = []
        for compression in dict.fromkeys(self.compressions[b.variable] for b in chosen):
            codec = codec_of(compression, n_terms=n_members)
            alike = [b for b in chosen if self.compressions[b.variable] == compression]
            size_of = partial(_payload_bytes, compression)
            by_name = collectives(alike, self.buckets, size_of)
            exchanges += [_Exchange.of(name, each, codec) for name, each in by_name.items()]
        return exchanges


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
        compressions = plan.compressions(served=True)
        if not plan.is_served or not compressions:
            return None
        return cls(task=plan.task, destinations=plan.destinations, compressions=compressions)

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        """The step whose contributions have gone through the compressor once."""
        chosen = _chosen(graph, self.compressions) if topology.n_tasks > 1 else []
        if not chosen:
            return graph
        host = topology.host_device(self.task)
        owners = tuple(topology.local_replicas(task)[0].rank for task in range(topology.n_tasks))
        memories = memories_of(graph, chosen, owners=owners, shared=False)
        combined: dict[str, Contribution] = {}
        additions = _Made()
        for b in chosen:
            codec = codec_of(self.compressions[b.variable], n_terms=1)
            contribution = b.contributions[0]
            kept = memories[captured_name(b)].states(b, codec, contribution.rank, host)
            encode = trace(encode_one, (_spec(b), *_state_specs(kept)), codec=codec)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class _Exchange:
    """A bucket of gradients of one type and compressor, and a name for the key of each of its collectives."""

    name: str
    members: tuple[str, ...]
    codec: Codec
    key_names: tuple[str, ...]

    @classmethod
    def of(cls, name: str, collective: Collective, codec: Codec) -> "_Exchange":
        count = n_keys(codec, len(collective.key_names))
        return cls(
            name=name,
            members=collective.members,
            codec=codec,
            key_names=tuple(f"{name}/compressed_{k}" for k in range(count)),
        )

    def splice(
        self,
        members: Sequence[Boundary],
        memories: Mapping[str, Memory],
        replica: Replica,
        *,
        group: tuple[int, int],
        keys: tuple[int, ...],
    ) -> tuple["_Made", dict[str, Contribution]]:
        """One replica's part in it: what it adds to the graph, and what then flows into its boundaries."""
        kept = [
            memories[captured_name(b)].states(b, self.codec, replica.rank, replica.device) for b in members
        ]
        flat = [state for states in kept for state in states]
        snippet = trace(
            compressed_sum,
            (*map(_spec, members), *_state_specs(flat)),
            shapes=tuple(map(static_dims, members)),
            codec=self.codec,
            group=group,
            keys=keys,
        )
        nodes, results = snippet.splice(
            f"{self.name}/compressed/replica_{replica.rank}/",
            [*(b.contributions[0].values for b in members), *(state.value for state in flat)],
            device=replica.device,
        )
        additions = _Made()
        additions.add(nodes, flat, results[len(members) :])
        return additions, {
            b.values: Contribution(rank=replica.rank, values=values, indices=None, weight=1.0, total=True)
            for b, values in zip(members, results, strict=False)
        }


@dataclass(slots=True, kw_only=True)
class _Made:
    """What a pass adds to a step."""

    nodes: list[Node] = field(default_factory=list)
    variables: list[Variable] = field(default_factory=list)
    targets: list[str] = field(default_factory=list)

    def add(self, nodes: Iterable[Node], kept: Sequence[KeptState], after: Sequence[str]) -> None:
        """Arithmetic between states and their next values."""
        keeping = [state.keep(value) for state, value in zip(kept, after, strict=True)]
        self.nodes += [node for state in kept for node in state.nodes]
        self.nodes += [*nodes, *keeping]
        self.variables += [state.variable for state in kept]
        self.targets += [node.name for node in keeping]

    def extend(self, other: "_Made") -> None:
        """All of another one."""
        self.nodes += other.nodes
        self.variables += other.variables
        self.targets += other.targets

    def into(self, step: TrainGraph, combined: Mapping[str, Contribution]) -> TrainGraph:
        """The step with all this, and boundaries into which these contributions flow."""
        return contribute(
            step,
            combined,
            self.nodes,
            variables=(*step.variables, *self.variables),
            state_targets=(*step.state_targets, *self.targets),
        )


def _chosen(step: TrainGraph, compressions: Mapping[str, Compression]) -> list[Boundary]:
    if compressions and step.n_levels > 1:
        raise StrategyError(
            "compressor: its bound is that of one gradient and update in a step, got "
            f"{step.n_levels} in a row; leave it out"
        )
    chosen = [b for b in step.gradients() if b.variable in compressions]
    for b in chosen:
        if b.indices is not None or b.dtype not in _FLOATING:
            kind = b.dtype if b.indices is None else "rows of a sparse gradient"
            raise StrategyError(
                f"variable {b.variable!r}: a compressor takes dense floating gradients, got {kind}; "
                "set compressor to null in the variable's node of the plan"
            )
    return chosen


def _payload_bytes(compression: Compression, b: Boundary) -> int:
    return payload_bytes(static_dims(b), b.dtype, compression)


def _spec(b: Boundary) -> TensorSpec:
    return TensorSpec(dtype=b.dtype, shape=b.shape)


def _state_specs(kept: Sequence[KeptState]) -> list[TensorSpec]:
    return [TensorSpec(dtype=k.variable.dtype, shape=k.variable.shape) for k in kept]
