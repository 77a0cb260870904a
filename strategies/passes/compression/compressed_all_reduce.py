"""Compressed all-reduce: sums of encoded gradients over replicas or tasks, a bucket at a time."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from typing import ClassVar, TypeAlias

from strategies.ir.graph import DType, Node, Shape, n_elements
from strategies.ir.train_graph import Boundary, Contribution, TrainGraph, Transfer
from strategies.numerics.compressed_sums import (
    bare,
    compressed_sum,
    decoded_sums,
    directions,
    encode_one,
    kept_of_projection,
    n_keys,
    own_right_factors,
    projected,
    rounded_one,
    sums_of_factors,
)
from strategies.numerics.compressors import Cast, Codec, Power, codec_of
from strategies.passes.collectives.buckets import Collective, encoded_buckets, static_dims
from strategies.passes.collectives.members import Members, compressed_keys
from strategies.passes.collectives.ring import Brought, Dims, ahead, all_given, give, take
from strategies.passes.compression.compressed_gradients import (
    Additions,
    Memory,
    compressed_boundaries,
    gradient_spec,
    memories_of,
    state_specs,
)
from strategies.passes.replicate.kept_state import KeptState
from strategies.passes.replicate.rewire import captured_name, sync_prefix
from strategies.passes.task_plan import Between, TaskPlan
from strategies.plan.compressors import WORD_BYTES, payload_bytes
from strategies.plan.schema import Compression
from strategies.tf_bridge.attrs import dtype_number
from strategies.tf_bridge.snippet import Snippet, TensorSpec, trace
from strategies.topology import Replica, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """A transfer that has been given something, and what comes of it.

    Attributes:
        nodes: that give and do not wait.
        comes: shapes of the tensors in each vector that comes.
        dtype: of these.
    """

    transfer: Transfer
    nodes: tuple[Node, ...]
    comes: Sequence[Sequence[Dims]]
    dtype: DType


Exchanging: TypeAlias = Generator[Given, Sequence[str], Mapping[str, str]]
"""An exchange under way: it gives, gets the tensors that came, gives again of these or ends with the sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoders:
    """Members of one task, what each brings, and what they remember.

    Attributes:
        brought: by name, the same on all replicas, and rank.
        compressions: variable → compressor of its gradient.
        memories: captured boundary → what its compressor remembers.
        additions: take what exchanges add to the step.
    """

    topology: Topology
    task: int
    members: Members
    brought: Brought
    compressions: Mapping[str, Compression]
    memories: Mapping[str, Memory]
    additions: Additions

    @property
    def host(self) -> str:
        """The device of what all replicas of the task share."""
        return self.topology.host_device(self.task)

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """Those of this task that encode."""
        return self.members.local(self.topology, self.task)

    def n_of_task(self, task: int) -> int:
        """How many encode on a task."""
        return len(self.members.local(self.topology, task))

    def states(self, name: str, codec: Codec, replica: Replica) -> list[KeptState]:
        """What a replica's compressor remembers of a gradient."""
        b = self.brought[name, replica.rank]
        return self.memories[captured_name(b)].states(b, codec, replica.rank, replica.device)

    def n_words(self, b: Boundary) -> int:
        """Of the payload of a gradient, by a codec that makes words."""
        return payload_bytes(static_dims(b), b.dtype, self.compressions[b.variable]) // WORD_BYTES

    def added(self, snippet: Snippet, prefix: str, inputs: Sequence[str], device: str) -> tuple[str, ...]:
        """What a snippet makes of these tensors; its nodes are added to the step."""
        nodes, results = snippet.splice(prefix, inputs, device=device)
        self.additions.nodes += nodes
        return results


_WORD = DType("int32")


def exchange_payloads(name: str, gradients: Sequence[str], codec: Codec, encoders: Encoders) -> Exchanging:
    """Sums decoded once on each worker, from all members' payloads in the order of their ranks."""
    task, host = encoders.task, encoders.host
    first = [encoders.brought[g, encoders.replicas[0].rank] for g in gradients]
    shapes, dtype = tuple(map(static_dims, first)), first[0].dtype
    lengths = [encoders.n_words(b) for b in first]
    own = [_payload(g, codec, encoders, r) for r, g in product(encoders.replicas, gradients)]
    shares = [encoders.n_of_task(k) * lengths for k in range(encoders.topology.n_tasks)]
    transfer = Transfer(name=name, kind="gather", shares=tuple(map(sum, shares)))
    came = yield Given(
        transfer=transfer,
        nodes=give(transfer, [own], [[Shape((n,)) for n in shares[task]]], _WORD, host),
        comes=[[(n,) for n in share] for k, share in enumerate(shares) if k != task],
        dtype=_WORD,
    )
    n_before = sum(len(share) for share in shares[:task])
    payloads = [*came[:n_before], *own, *came[n_before:]]
    snippet = trace(
        decoded_sums,
        tuple(TensorSpec(dtype=_WORD, shape=Shape((n,))) for n in chain(*shares)),
        shapes=shapes,
        dtype=dtype_number(dtype),
        codec=codec,
    )
    sums = encoders.added(snippet, f"{name}/decode/", payloads, host)
    return dict(zip(gradients, sums, strict=True))


def _payload(gradient: str, codec: Codec, encoders: Encoders, replica: Replica) -> str:
    """The payload of one replica's gradient, and nodes that keep what its compressor remembers."""
    b = encoders.brought[gradient, replica.rank]
    states = encoders.states(gradient, codec, replica)
    encode = trace(encode_one, (gradient_spec(b), *state_specs(states)), codec=codec)
    nodes, (payload, *after) = encode.splice(
        f"{gradient}/encode/replica_{replica.rank}/",
        [b.contributions[0].values, *(state.value for state in states)],
        device=replica.device,
    )
    encoders.additions.add(nodes, states, after)
    return payload


def exchange_factors(name: str, gradients: Sequence[str], codec: Codec, encoders: Encoders) -> Exchanging:
    """Sums made once on each worker, as products of two factors; see `power_sums`."""
    n, host, replicas = len(gradients), encoders.host, encoders.replicas
    brought = [[encoders.brought[g, r.rank] for g in gradients] for r in replicas]
    states = [[s for g in gradients for s in encoders.states(g, codec, r)] for r in replicas]
    dtype = states[0][0].variable.dtype
    shapes = tuple(map(static_dims, brought[0]))
    rights = [_dims(factor) for factor in states[0][1::2]]
    matrices = [(n_elements(dims[:-1]), dims[-1]) for dims in shapes]
    lefts = [(rows, columns) for (rows, _), (_, columns) in zip(matrices, rights, strict=True)]

    def specs(*groups: Sequence[Dims]) -> tuple[TensorSpec, ...]:
        return tuple(TensorSpec(dtype=dtype, shape=Shape(dims)) for group in groups for dims in group)

    def given(stage: str, products: Sequence[Sequence[str]], dims: Sequence[Dims]) -> Given:
        """A sum of what all members have of one of the factors."""
        transfer = Transfer(name=f"{name}/{stage}")
        nodes = give(transfer, products, [[Shape(each) for each in dims]], dtype, host)
        return Given(transfer=transfer, nodes=nodes, comes=[dims], dtype=dtype)

    of_replica = []
    for replica, own, kept in zip(replicas, brought, states, strict=True):
        project = trace(projected, (*map(gradient_spec, own), *state_specs(kept)))
        inputs = [*(b.contributions[0].values for b in own), *(state.value for state in kept)]
        of_replica.append(
            encoders.added(project, f"{name}/project/replica_{replica.rank}/", inputs, replica.device)
        )
    products = yield given("left", [made[n:] for made in of_replica], lefts)
    orthonormal = encoders.added(trace(directions, specs(lefts)), f"{name}/directions/", products, host)
    own_rights = [
        encoders.added(
            trace(own_right_factors, specs(matrices, lefts)),
            f"{name}/own-right/replica_{replica.rank}/",
            [*made[:n], *orthonormal],
            replica.device,
        )
        for replica, made in zip(replicas, of_replica, strict=True)
    ]
    summed = yield given("right", own_rights, rights)
    keep = trace(kept_of_projection, specs(matrices, lefts, rights, rights, rights), shapes=shapes)
    for replica, made, right, kept in zip(replicas, of_replica, own_rights, states, strict=True):
        before = [factor.value for factor in kept[1::2]]
        nodes, after = keep.splice(
            f"{name}/keep/replica_{replica.rank}/",
            [*made[:n], *orthonormal, *right, *summed, *before],
            device=replica.device,
        )
        encoders.additions.add(nodes, kept, after)
    multiply = trace(
        sums_of_factors, specs(lefts, rights), shapes=shapes, dtype=dtype_number(brought[0][0].dtype)
    )
    sums = encoders.added(multiply, f"{name}/sums/", [*orthonormal, *summed], host)
    return dict(zip(gradients, sums, strict=True))


def _dims(factor: KeptState) -> Dims:
    dims = factor.variable.shape.dims
    assert dims is not None
    return dims


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
        compressions = plan.compressions("collectives")
        if not plan.needs_collectives or not compressions:
            return None
        return cls(task=plan.task, buckets=plan.buckets, compressions=compressions, between=plan.between)

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        """The step with one exchange per bucket and compressor on each local member."""
        gradients = compressed_boundaries(graph, self.compressions)
        if not gradients:
            return graph
        members = Members.of(topology, self.between)
        chosen = [b for b in gradients if b.rank in members.ranks]
        exchanges = self._exchanges(chosen, len(members.ranks))
        memories = memories_of(graph, chosen, owners=tuple(members.ranks), shared=True)
        keys = compressed_keys(key for each in exchanges for key in each.key_names)
        combined: dict[str, Contribution] = {}
        additions = Additions()
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
        return [
            _Exchange.of(name, bucket, codec_of(compression, n_terms=n_members))
            for name, bucket, compression in encoded_buckets(chosen, self.compressions, self.buckets)
        ]


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
    ) -> tuple["Additions", dict[str, Contribution]]:
        """One replica's part in it: what it adds to the graph, and what then flows into its boundaries."""
        kept = [
            memories[captured_name(b)].states(b, self.codec, replica.rank, replica.device) for b in members
        ]
        flat = [state for states in kept for state in states]
        snippet = trace(
            compressed_sum,
            (*map(gradient_spec, members), *state_specs(flat)),
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
        additions = Additions()
        additions.add(nodes, flat, results[len(members) :])
        return additions, {
            b.values: Contribution(rank=replica.rank, values=values, indices=None, weight=1.0, total=True)
            for b, values in zip(members, results, strict=False)
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundedGradients:
    """Round each gradient to its type on the wire, and keep what that loses where the next one gets it.

    The transport rounds what it sends: nothing is lost then but in sums.

    Attributes:
        compressions: variable → compressor of its gradient.
        between: whose gradients are encoded.
    """

    name: ClassVar[str] = "rounded-gradients"
    task: int
    compressions: Mapping[str, Compression]
    between: Between = "replicas"

    @classmethod
    def of(cls, plan: TaskPlan) -> "RoundedGradients | None":
        """Where the workers' own transport carries gradients in a smaller type."""
        if not plan.needs_collectives or not plan.rounded_on_wire:
            return None
        return cls(task=plan.task, compressions=plan.rounded_on_wire, between=plan.between)

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        """The step with rounded contributions."""
        gradients = compressed_boundaries(graph, self.compressions)
        members = Members.of(topology, self.between)
        chosen = [b for b in gradients if b.rank in members.ranks and b.contributions]
        memories = memories_of(graph, chosen, owners=tuple(members.ranks), shared=True)
        combined: dict[str, Contribution] = {}
        additions = Additions()
        for replica in members.local(topology, self.task):
            for b in (each for each in chosen if each.rank == replica.rank):
                codec = codec_of(self.compressions[b.variable], n_terms=len(members.ranks))
                if isinstance(codec, Cast):
                    # The transport's own rounding does the same, and nothing is too large for it.
                    continue
                states = memories[captured_name(b)].states(b, codec, replica.rank, replica.device)
                snippet = trace(rounded_one, (gradient_spec(b), *state_specs(states)), codec=codec)
                nodes, results = snippet.splice(
                    f"{sync_prefix(b)}/rounded/replica_{replica.rank}/",
                    [b.contributions[0].values, *(state.value for state in states)],
                    device=replica.device,
                )
                additions.add(nodes, states, results[1:])
                combined[b.values] = replace(b.contributions[0], values=results[0])
        return additions.into(graph, combined)


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodedTransportAllReduce:
    """Sum the gradients that have a compressor over all workers, a bucket at a time.

    What all exchanges give is handed over before the step waits for any, and then once more where something
    is to be given of what came.

    Attributes:
        buckets: names of the variables of each bucket; sums follow backward, whatever their order.
        compressions: variable → compressor of its gradient.
        between: whose gradients are encoded.
    """

    name: ClassVar[str] = "encoded-transport-all-reduce"
    task: int
    buckets: tuple[tuple[str, ...], ...]
    compressions: Mapping[str, Compression]
    between: Between = "replicas"

    @classmethod
    def of(cls, plan: TaskPlan) -> "EncodedTransportAllReduce | None":
        """Where the workers' own transport carries encoded gradients."""
        compressions = plan.compressions("own transport")
        if not plan.needs_collectives or not compressions:
            return None
        return cls(task=plan.task, buckets=plan.buckets, compressions=compressions, between=plan.between)

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        """The step with the exchanges of this task's members."""
        members = Members.of(topology, self.between)
        chosen = [b for b in compressed_boundaries(graph, self.compressions) if b.rank in members.ranks]
        if not chosen:
            return graph
        encoders = Encoders(
            topology=topology,
            task=self.task,
            members=members,
            brought=self._brought(chosen, members, topology),
            compressions=self.compressions,
            memories=memories_of(graph, chosen, owners=members.ranks, shared=True),
            additions=Additions(),
        )
        transfers: list[Transfer] = []
        totals = _carried_out(self._exchanges(chosen, encoders, graph), encoders, transfers)
        combined = {
            b.values: Contribution(
                rank=b.contributions[0].rank, values=totals[name], indices=None, weight=1.0, total=True
            )
            for (name, _), b in encoders.brought.items()
        }
        return encoders.additions.into(graph, combined, transfers=ahead(transfers, graph.transfers))

    def _brought(self, chosen: Sequence[Boundary], members: Members, topology: Topology) -> Brought:
        ranks = {replica.rank for replica in members.local(topology, self.task)}
        return {(sync_prefix(b), b.rank): b for b in chosen if b.rank is not None and b.rank in ranks}

    def _exchanges(
        self, chosen: Sequence[Boundary], encoders: Encoders, graph: TrainGraph
    ) -> Sequence[Exchanging]:
        """In the order in which backward has all of their gradients."""
        variable_of = {sync_prefix(b): b.variable for b in chosen}
        buckets = sorted(
            encoded_buckets(chosen, self.compressions, self.buckets),
            key=lambda named: graph.ready(variable_of[member] for member in named[1].members),
        )
        exchanges = []
        for name, bucket, compression in buckets:
            codec = codec_of(compression, n_terms=len(encoders.members.ranks))
            exchange = exchange_factors if isinstance(bare(codec), Power) else exchange_payloads
            exchanges.append(exchange(name, bucket.members, codec, encoders))
        return exchanges


def _carried_out(
    exchanges: Sequence[Exchanging], encoders: Encoders, transfers: list[Transfer]
) -> Mapping[str, str]:
    """Carry exchanges out side by side.

    Args:
        transfers: takes what is transferred, in its order.
    Returns:
        name of a gradient → its sum.
    """
    host = encoders.host
    running = [(exchange, next(exchange)) for exchange in exchanges]
    totals: dict[str, str] = {}
    after: tuple[str, ...] = ()
    round_number = 0
    while running:
        given = [node for _, each in running for node in each.nodes]
        handed_over = all_given(f"sync/encoded-handed-over_{round_number}/", given, host, after)
        encoders.additions.nodes += [*given, *handed_over]
        transfers += [each.transfer for _, each in running]
        previous = handed_over[-1].name
        resumed: list[tuple[Exchanging, Given]] = []
        for exchange, each in running:
            nodes, came, previous = take(each.transfer, each.comes, each.dtype, host, previous)
            encoders.additions.nodes += nodes
            try:
                resumed.append((exchange, exchange.send(came)))
            except StopIteration as end:
                totals |= end.value
        running, after, round_number = resumed, (previous,), round_number + 1
    return totals
