"""Compressed exchanges: sums of encoded gradients over replicas or workers, and pushes to servers.

Encodings are sent by TensorFlow's collectives or the workers' ring. Both sum the factors of a low-rank
compressor, and gather word payloads; values in a smaller type are summed on the network.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count, product
from typing import ClassVar

from strategies.ir.graph import DType, Shape, n_elements
from strategies.ir.train_graph import Block, Boundary, Contribution, TrainGraph, Transfer
from strategies.numerics.compressed_sums import (
    bare,
    compressed_sum,
    decode_one,
    decoded_sums,
    directions,
    encode_one,
    n_keys,
    own_right_factors,
    payload_dtype,
    projected,
    projection_states,
    rounded_one,
    sums_of_factors,
)
from strategies.numerics.compressors import Cast, Codec, Power, codec_of
from strategies.passes.collectives.buckets import encoded_buckets, static_dims
from strategies.passes.collectives.members import Members, compressed_keys
from strategies.passes.collectives.tcp_ring import Dims, Exchange, Turn, ahead, carry_out, give
from strategies.passes.compression.encoders import Encoders, gradient_spec, state_specs
from strategies.passes.replicate.rewire import sync_prefix, total
from strategies.passes.replicate.state_variables import StateVariable
from strategies.passes.task_plan import TaskPlan
from strategies.plan.compressors import WORD_BYTES, payload_bytes
from strategies.tf_bridge.attrs import dtype_number
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import Replica, Topology

_WORD = DType("int32")


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressedAllReduce:
    """Sum the gradients that have a compressor over all members, by TensorFlow's collectives."""

    name: ClassVar[str] = "compressed-all-reduce"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        members = Members.of(topology, self.plan.between)
        compressions = self.plan.compressions("collectives")
        encoders = Encoders.of(graph, compressions, members.ranks, shared=True)
        if not encoders.gradients:
            return graph
        by_name = {(sync_prefix(b), b.rank): b for b in encoders.gradients}
        exchanges = []
        for name, bucket, compression in encoded_buckets(encoders.gradients, compressions, self.plan.buckets):
            codec = codec_of(compression, n_terms=encoders.n_terms)
            n = n_keys(codec, len(bucket.key_names))
            exchanges.append((name, bucket.members, codec, [f"{name}/compressed_{k}" for k in range(n)]))
        keys = compressed_keys(key for *_, key_names in exchanges for key in key_names)
        combined: dict[str, Contribution] = {}
        for replica, (name, names, codec, key_names) in product(
            members.local(topology, self.plan.task), exchanges
        ):
            own = [by_name[member, replica.rank] for member in names]
            sums = encoders.encode(
                compressed_sum,
                own,
                f"{name}/compressed/replica_{replica.rank}/",
                replica.device,
                shapes=tuple(map(static_dims, own)),
                codec=codec,
                group=members.group,
                keys=tuple(keys[key] for key in key_names),
            )
            combined |= {b.values: total(replica.rank, ref) for b, ref in zip(own, sums, strict=True)}
        return encoders.into(graph, combined)


@dataclass(frozen=True, kw_only=True, slots=True)
class RoundedGradients:
    """Round each gradient to its type on the network, and keep the rounding error for the next one.

    The ring rounds what it sends; after this pass only its sums lose precision.
    """

    name: ClassVar[str] = "rounded-gradients"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        members = Members.of(topology, self.plan.between)
        encoders = Encoders.of(graph, self.plan.rounded_on_wire, members.ranks, shared=True)
        combined: dict[str, Contribution] = {}
        for replica in members.local(topology, self.plan.task):
            for b in encoders.gradients:
                if b.rank != replica.rank or not b.contributions:
                    continue
                codec = encoders.codec(b)
                if isinstance(codec, Cast):
                    # The ring's own rounding does the same, and no value is too large for it.
                    continue
                prefix = f"{sync_prefix(b)}/rounded/replica_{replica.rank}/"
                (values,) = encoders.encode(rounded_one, [b], prefix, replica.device, codec=codec)
                combined[b.values] = replace(b.contributions[0], values=values)
        return encoders.into(graph, combined)


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressedTcpAllReduce:
    """Sum the gradients that have a compressor over all workers, by the workers' ring."""

    name: ClassVar[str] = "compressed-tcp-all-reduce"
    plan: TaskPlan

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        members = Members.of(topology, self.plan.between)
        compressions = self.plan.compressions("own transport")
        encoders = Encoders.of(graph, compressions, members.ranks, shared=True)
        if not encoders.gradients:
            return graph
        local = _LocalGradients(encoders=encoders, members=members, topology=topology, task=self.plan.task)
        variable_of = {sync_prefix(b): b.variable for b in encoders.gradients}
        buckets = sorted(
            encoded_buckets(encoders.gradients, compressions, self.plan.buckets),
            # In the order in which backward has all of their gradients.
            key=lambda named: graph.ready(variable_of[member] for member in named[1].members),
        )
        exchanges = [local.exchange(name, bucket.members) for name, bucket, _ in buckets]
        rounds = (f"sync/encoded-handed-over_{k}" for k in count())
        carried = carry_out(exchanges, rounds, local.host, encoders.nodes)
        combined = {
            b.values: total(b.contributions[0].rank, carried.results[sync_prefix(b)])
            for b in encoders.gradients
            if b.rank in local.ranks
        }
        transfers = ahead(carried.transfers, graph.transfers)
        return replace(encoders.into(graph, combined), transfers=transfers)


@dataclass(frozen=True, slots=True, kw_only=True)
class _LocalGradients:
    """Gradients of one task's members that the ring sends encoded."""

    encoders: Encoders
    members: Members
    topology: Topology
    task: int

    @property
    def host(self) -> str:
        return self.topology.host_device(self.task)

    @property
    def replicas(self) -> tuple[Replica, ...]:
        return self.members.local(self.topology, self.task)

    @property
    def ranks(self) -> frozenset[int]:
        return frozenset(replica.rank for replica in self.replicas)

    def of(self, names: Sequence[str], replica: Replica) -> list[Boundary]:
        own = {sync_prefix(b): b for b in self.encoders.gradients if b.rank == replica.rank}
        return [own[name] for name in names]

    def exchange(self, name: str, gradients: Sequence[str]) -> Exchange[str]:
        codec = self.encoders.codec(self.of(gradients, self.replicas[0])[0])
        exchange = self._factors if isinstance(bare(codec), Power) else self._payloads
        return exchange(name, gradients, codec)

    def _payloads(self, name: str, gradients: Sequence[str], codec: Codec) -> Exchange[str]:
        """Gather word payloads; each worker decodes those of all members once, in the order of ranks."""
        first = self.of(gradients, self.replicas[0])
        lengths = [self._n_words(b) for b in first]
        own = [
            self.encoders.encode(
                encode_one, [b], f"{gradient}/encode/replica_{replica.rank}/", replica.device, codec=codec
            )[0]
            for replica in self.replicas
            for gradient, b in zip(gradients, self.of(gradients, replica), strict=True)
        ]
        tasks = range(self.topology.n_tasks)
        n_members = [len(self.members.local(self.topology, task)) for task in tasks]
        shapes = [Shape((n,)) for _ in self.replicas for n in lengths]
        block = Block(sizes=tuple(n * sum(lengths) for n in n_members), tasks=tuple(tasks))
        transfer = Transfer(name=name, kind="gather", blocks=(block,))
        n_words = sum(n_members) * sum(lengths)
        of_all = yield give(transfer, [own], [shapes], _WORD, self.host, comes=[[(n_words,)]])
        snippet = trace(
            decoded_sums,
            (TensorSpec(dtype=_WORD, shape=Shape((n_words,))),),
            lengths=tuple(lengths),
            shapes=tuple(map(static_dims, first)),
            dtype=dtype_number(first[0].dtype),
            codec=codec,
        )
        sums = self.encoders.splice(snippet, f"{name}/decode/", of_all, self.host)
        return dict(zip(gradients, sums, strict=True))

    def _n_words(self, b: Boundary) -> int:
        return payload_bytes(static_dims(b), b.dtype, self.encoders.compressions[b.variable]) // WORD_BYTES

    def _factors(self, name: str, gradients: Sequence[str], _codec: Codec) -> Exchange[str]:
        """Sum both factors of gradients over all workers; the second factor is computed from the first."""
        n, host, replicas, encoders = len(gradients), self.host, self.replicas, self.encoders
        local = [self.of(gradients, replica) for replica in replicas]
        states = [
            [s for b in own for s in encoders.states(b, replica.device)]
            for own, replica in zip(local, replicas, strict=True)
        ]
        dtype = states[0][0].variable.dtype
        shapes = tuple(map(static_dims, local[0]))
        rights = [_dims(factor) for factor in states[0][1::2]]
        matrices = [(n_elements(dims[:-1]), dims[-1]) for dims in shapes]
        lefts = [(rows, columns) for (rows, _), (_, columns) in zip(matrices, rights, strict=True)]

        def specs(*groups: Sequence[Dims]) -> tuple[TensorSpec, ...]:
            return tuple(TensorSpec(dtype=dtype, shape=Shape(dims)) for group in groups for dims in group)

        def inputs_of(stage: str, factors: Sequence[Sequence[str]], dims: Sequence[Dims]) -> Turn:
            shapes = [[Shape(dim) for dim in dims]]
            return give(Transfer(name=f"{name}/{stage}"), factors, shapes, dtype, host, comes=[dims])

        projections = [
            encoders.splice(
                trace(projected, (*map(gradient_spec, own), *state_specs(state))),
                f"{name}/project/replica_{replica.rank}/",
                [*(b.contributions[0].values for b in own), *(kept_state.value for kept_state in state)],
                replica.device,
            )
            for replica, own, state in zip(replicas, local, states, strict=True)
        ]
        products = yield inputs_of("left", [projection[n:] for projection in projections], lefts)
        orthonormal = encoders.splice(trace(directions, specs(lefts)), f"{name}/directions/", products, host)
        own_rights = [
            encoders.splice(
                trace(own_right_factors, specs(matrices, lefts)),
                f"{name}/own-right/replica_{replica.rank}/",
                [*projection[:n], *orthonormal],
                replica.device,
            )
            for replica, projection in zip(replicas, projections, strict=True)
        ]
        summed = yield inputs_of("right", own_rights, rights)
        keep = trace(projection_states, specs(matrices, lefts, rights, rights, rights), shapes=shapes)
        for replica, projection, right, state in zip(replicas, projections, own_rights, states, strict=True):
            before = [factor.value for factor in state[1::2]]
            nodes, values = keep.splice(
                f"{name}/keep/replica_{replica.rank}/",
                [*projection[:n], *orthonormal, *right, *summed, *before],
                device=replica.device,
            )
            encoders.keep(nodes, state, values)
        multiply = trace(
            sums_of_factors, specs(lefts, rights), shapes=shapes, dtype=dtype_number(local[0][0].dtype)
        )
        sums = encoders.splice(multiply, f"{name}/sums/", [*orthonormal, *summed], host)
        return dict(zip(gradients, sums, strict=True))


def _dims(factor: StateVariable) -> Dims:
    dims = factor.variable.shape.dims
    assert dims is not None
    return dims


@dataclass(frozen=True, kw_only=True, slots=True)
class CompressedPush:
    """Encode pushes on the worker and decode them on the server, which adds up the decoded values."""

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
