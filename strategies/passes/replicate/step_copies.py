"""Nodes that exist per shard, per replica or once: their copies, references and weights."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace

from strategies.ir.graph import Graph, Node, producer
from strategies.ir.replica_updates import own_updates, replica_targets
from strategies.ir.resource_uses import resource_uses
from strategies.ir.side_effects import quiet_tables
from strategies.ir.train_graph import Boundary, Contribution, Loss, TrainGraph, UpdateRegion
from strategies.ir.traversal import Renames, ancestors, renamed_copies
from strategies.ir.variable import Variable
from strategies.topology import Shard, Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class Owners:
    """Nodes with one copy per shard, and nodes with one copy per replica; others exist once.

    Without micro-batches a shard has no nodes that its replica lacks.
    """

    per_shard: AbstractSet[str]
    per_replica: AbstractSet[str]

    @classmethod
    def of(cls, step: TrainGraph, *, shared: AbstractSet[str], micro_batches: int) -> "Owners":
        """Find the owners of a step's nodes.

        Args:
            shared: names of the variables with one copy for all replicas; each replica owns and updates the
                others.
            micro_batches: number of shards per replica.
        Raises:
            StrategyError: one node updates both shared and own variables.
        """
        everything = set(step.graph.by_name) - {b.node for b in step.batch}
        if not shared and micro_batches == 1:
            return cls(per_shard=frozenset(), per_replica=everything)
        passing = _forward_and_backward(step)
        copied = passing | own_updates(step, shared) if shared else everything
        if micro_batches == 1:
            return cls(per_shard=frozenset(), per_replica=copied)
        passing -= _same_for_all_shards(step, passing)
        return cls(per_shard=passing, per_replica=copied - passing)

    def copied(self) -> set[str]:
        """Nodes that are copied."""
        return {*self.per_shard, *self.per_replica}


def _forward_and_backward(step: TrainGraph) -> set[str]:
    """Forward, backward, and the variables and tables that each replica owns."""
    by_name = step.graph.by_name
    crossing = [n for b in step.boundaries for n in (b.values, b.indices) if n is not None]
    roots = [producer(by_name[n].inputs[0]) for n in crossing]
    roots += step.returned()
    roots += replica_targets(step)
    roots += step.tables
    roots += [n for v in step.variables if v.rule == "per-replica" for n in v.access]
    # A later forward pass needs updates, which are made elsewhere.
    return ancestors(step.graph, roots, stop=_not_entered(step).union(crossing, step.update_nodes()))


def _same_for_all_shards(step: TrainGraph, passing: AbstractSet[str]) -> set[str]:
    """Nodes of forward and backward that shards share: tables, constants, first reads of variables.

    All micro-batches use one read: a parameter server sends a variable to a replica once per step.
    """
    uses = resource_uses(step.graph)
    constant = [
        v
        for v in step.variables
        if v.rule == "per-replica" and v.seed_word is None and set(uses[v.handle].writes) <= {v.load}
    ]
    roots = [*step.tables, *(n for v in constant for n in v.access)]
    same = ancestors(step.graph, roots, stop=_not_entered(step))
    handles = {v.handle for v in step.variables if v.rule != "per-replica"}
    of_shards = passing - same
    same |= {
        node.name
        for node in step.graph.nodes
        if node.name in of_shards
        and node.op == "ReadVariableOp"
        and node.inputs[0] in handles
        and of_shards.isdisjoint(map(producer, node.inputs))
    }
    return same


def _not_entered(step: TrainGraph) -> set[str]:
    return {v.handle for v in step.variables if v.rule != "per-replica"} | {b.node for b in step.batch}


def replica_prefix(rank: int) -> str:
    """Prefix of the names of a replica's nodes."""
    return f"replica_{rank}/"


def micro_batch_prefix(shard: Shard) -> str:
    """Prefix of the names of a micro-batch's nodes."""
    return f"micro_batch_{shard.turn}/{replica_prefix(shard.replica.rank)}"


@dataclass(frozen=True, slots=True)
class StepCopies:
    """A captured step, and its references in the copy of each shard.

    Attributes:
        firsts: first shard of each replica, which represents it.
        renames: rank of a shard → its references.
        inner: rank of a shard → references within copies, which read substitutes for nodes that exist once.
        joint: nodes that a replica has once and that its shards feed, or that wait for its shards' results.
    """

    graph: TrainGraph
    owners: Owners
    shards: Sequence[Shard]
    firsts: Sequence[Shard]
    renames: Mapping[int, Renames]
    inner: Mapping[int, Renames]
    joint: AbstractSet[str]

    @classmethod
    def of(
        cls,
        graph: TrainGraph,
        owners: Owners,
        shards: Sequence[Shard],
        fed: Mapping[int, Mapping[str, str]],
        between: Mapping[str, str],
    ) -> "StepCopies":
        """Make the copies for these shards.

        Args:
            fed: rank of a shard → placeholder → reference of its examples.
            between: reference of a node that exists once → reference that copies read or wait for instead.
        """
        copied = owners.copied()
        # A wait for a value that crosses to a shared variable becomes a wait for having computed that value.
        gradients = {
            f"^{n}": producer(graph.graph.by_name[n].inputs[0])
            for b in graph.boundaries
            for n in (b.values, b.indices)
            if n is not None and n not in copied
        }
        renames, inner = {}, {}
        for shard in shards:
            replica, micro_batch = replica_prefix(shard.replica.rank), micro_batch_prefix(shard)
            names = {name: replica + name for name in owners.per_replica}
            names.update((name, micro_batch + name) for name in owners.per_shard)
            renames[shard.rank] = Renames(names)
            renames[shard.rank].update(fed[shard.rank])
            inner[shard.rank] = Renames(names)
            inner[shard.rank].update(fed[shard.rank])
            inner[shard.rank].update(between)
            own = renames[shard.rank]
            inner[shard.rank].update((ref, f"^{producer(own[source])}") for ref, source in gradients.items())
        of_shards = owners.per_shard | {producer(ref) for ref in (*gradients, *between) if ref[0] == "^"}
        joint = {
            node.name
            for node in graph.graph.nodes
            if node.name in owners.per_replica and not of_shards.isdisjoint(map(producer, node.inputs))
        }
        firsts = [shard for shard in shards if shard.turn == 0]
        return cls(graph, owners, shards, firsts, renames, inner, joint)

    def ref(self, ref: str, shard: Shard) -> str:
        """Reference in this shard's copy for a reference of the captured graph."""
        return self.renames[shard.rank][ref]

    def refs(self, refs: Sequence[str], shards: Sequence[Shard] | None = None) -> tuple[str, ...]:
        """References in the copies of all these shards, without repetition."""
        chosen = self.shards if shards is None else shards
        return tuple(dict.fromkeys(self.ref(ref, shard) for shard in chosen for ref in refs))

    def own(self, nodes: Sequence[Node], shard: Shard) -> Iterator[Node]:
        """Nodes of a shard's copy, and with a replica's first shard those of the replica."""
        if shard.turn == 0:
            originals = [node for node in nodes if node.name in self.owners.per_replica]
            shard_copies = [self.inner[other.rank] for other in self.shards if other.replica == shard.replica]
            for original, copy in zip(
                originals, self._copied(originals, shard, replica_prefix(shard.replica.rank)), strict=True
            ):
                joint = original.name in self.joint
                yield replace(copy, inputs=_inputs(original, shard_copies)) if joint else copy
        inner = [node for node in nodes if node.name in self.owners.per_shard]
        yield from self._copied(inner, shard, micro_batch_prefix(shard))

    def _copied(self, nodes: Iterable[Node], shard: Shard, prefix: str) -> Iterator[Node]:
        device = shard.replica.device
        for node in renamed_copies(nodes, self.inner[shard.rank], frames=prefix, device=lambda _: device):
            if node.op == "VarHandleOp":
                shared_name = node.attrs["shared_name"]
                assert isinstance(shared_name, bytes)
                yield replace(node, attrs={**node.attrs, "shared_name": prefix.encode() + shared_name})
            else:
                yield node

    def shared(self, nodes: Sequence[Node], apart: set[str]) -> Iterator[Node]:
        """Nodes that exist once, without those in `apart`."""
        copied = self.owners.copied()
        for node in nodes:
            if node.name in apart:
                continue
            alone = copied.isdisjoint(map(producer, node.inputs))
            yield node if alone else replace(node, inputs=_inputs(node, [*self.renames.values()]))

    def describe(self, copied: Graph, topology: Topology) -> TrainGraph:
        """Train graph of the copied graph."""
        graph, first = self.graph, self.shards[0]
        return replace(
            graph,
            graph=copied,
            variables=tuple(copy for v in graph.variables for copy in self._variables(v)),
            boundaries=tuple(
                b for boundary in graph.boundaries for b in self._boundaries(boundary, topology)
            ),
            regions=tuple(copy for region in graph.regions for copy in self._regions(region)),
            shared_update=self.refs(graph.shared_update),
            losses=tuple(self._loss(s, topology) for s in self.shards),
            results=tuple(
                replace(
                    result,
                    tensor=self.ref(result.tensor, s),
                    rank=s.rank,
                    weight=s.examples / topology.batch_size,
                )
                for result in graph.results
                for s in self.shards
            ),
            statistics=tuple(
                replace(statistic, node=self.ref(statistic.node, s), rank=s.replica.rank)
                for statistic in graph.statistics
                for s in self.shards
            ),
            state_targets=self.refs(graph.state_targets),
            # Side effects happen once per step, on rank 0.
            effects=self.refs(graph.effects, [first]) if first.rank == 0 else (),
            tables=tuple(
                dict.fromkeys(
                    name
                    for shard in self.shards
                    for name in self.refs(graph.tables if shard.rank == 0 else quiet_tables(graph), [shard])
                )
            ),
            savers=self.refs(graph.savers),
        )

    def _loss(self, shard: Shard, topology: Topology) -> Loss:
        loss = self.graph.losses[0]
        weight = shard.examples / topology.batch_size if loss.reduction == "mean" else 1.0
        return replace(loss, tensor=self.ref(loss.tensor, shard), weight=weight)

    def _variables(self, v: Variable) -> Iterator[Variable]:
        if v.handle in self.owners.per_shard:
            owned = [(shard, shard.rank) for shard in self.shards]
        elif v.handle in self.owners.per_replica:
            owned = [(shard, shard.replica.rank) for shard in self.firsts]
        else:
            yield v
            return
        for shard, rank in owned:
            handle, placeholder, load, read = (self.ref(n, shard) for n in v.access)
            yield replace(v, handle=handle, placeholder=placeholder, load=load, read=read, rank=rank)

    def _regions(self, region: UpdateRegion) -> Iterator[UpdateRegion]:
        mirrored = region.targets[0] in self.owners.per_replica
        for shard in self.firsts if mirrored else self.shards[:1]:
            nodes, targets = (self.refs(names, [shard]) for names in (region.nodes, region.targets))
            rank = shard.replica.rank if mirrored else None
            yield replace(region, nodes=nodes, targets=targets, rank=rank)

    def _boundaries(self, b: Boundary, topology: Topology) -> Iterator[Boundary]:
        crossing = [self._contribution(b, shard, topology) for shard in self.shards]
        if b.values not in self.owners.per_replica:
            yield replace(b, contributions=tuple(crossing))
            return
        for first in self.firsts:
            rank = first.replica.rank
            yield replace(
                b,
                values=self.ref(b.values, first),
                indices=None if b.indices is None else self.ref(b.indices, first),
                rank=rank,
                contributions=tuple(c for c in crossing if c.rank == rank),
            )

    def _contribution(self, b: Boundary, shard: Shard, topology: Topology) -> Contribution:
        by_name = self.graph.graph.by_name
        weights = {
            "mean": shard.examples / topology.batch_size,
            "sum": 1.0,
            "first-replica": float(shard.rank == 0),
        }
        return Contribution(
            rank=shard.replica.rank,
            values=self.ref(by_name[b.values].inputs[0], shard),
            indices=None if b.indices is None else self.ref(by_name[b.indices].inputs[0], shard),
            weight=weights[b.rule],
        )


def _inputs(node: Node, renames: Sequence[Renames]) -> tuple[str, ...]:
    """Inputs of a node that several shards share: it reads the first shard, and waits for all."""
    data = (renames[0][ref] for ref in node.data_inputs)
    waits = dict.fromkeys(rename[ref] for rename in renames for ref in node.inputs if ref[0] == "^")
    return (*data, *waits)
