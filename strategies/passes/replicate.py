"""One copy of the step for each replica of a task."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.ir.graph import Graph, Node, producer
from strategies.ir.late import replica_targets
from strategies.ir.random import reseed
from strategies.ir.train_graph import Boundary, Contribution, Loss, TrainGraph, UpdateRegion, Variable
from strategies.ir.traversal import Renames, ancestors, copy_nodes
from strategies.passes.split_batch import split_batch
from strategies.topology import Replica, Topology


def replica_prefix(rank: int) -> str:
    """What the names of a replica's nodes start with."""
    return f"replica_{rank}/"


@dataclass(frozen=True, kw_only=True, slots=True)
class Replicate:
    """Copy the step for every replica of this task, on the replica's device and with the rank's random state.

    A boundary afterwards lists what each replica contributes, and passes on the first local one until a later
    pass replaces that by what all contribute together.

    Attributes:
        mirrored: every replica owns all variables and updates them; otherwise all replicas share one copy of
            them, of the update and of merged state, and only forward, backward and random state are copied.
    """

    name: ClassVar[str] = "replicate"
    task: int
    mirrored: bool

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        """The step of this task's replicas."""
        replicas = topology.local_replicas(self.task)
        split, shards = split_batch(graph.batch, replicas, topology.host_device(self.task))
        fed = {b.node for b in graph.batch}
        copies = _Copies.of(graph, _everything(graph) if self.mirrored else _per_replica(graph), replicas)
        originals = graph.graph.with_nodes(n for n in graph.graph.nodes if n.name in copies.originals)
        nodes: list[Node] = [n for n in graph.graph.nodes if n.name in fed]
        nodes += split
        functions = dict(graph.graph.functions)
        for replica in replicas:
            seeded = reseed(originals, replica.rank)
            functions.update(seeded.functions)
            nodes += _copy(seeded.nodes, replica, shards[replica.rank])
        if not self.mirrored:
            nodes += copies.shared(fed)
        made = Graph(nodes=tuple(nodes), functions=functions, extra=graph.graph.extra)
        return copies.describe(made, topology)


def _everything(graph: TrainGraph) -> set[str]:
    return set(graph.graph.by_name) - {b.node for b in graph.batch}


def _per_replica(graph: TrainGraph) -> set[str]:
    """Forward, backward, and the variables and tables that each replica has for itself."""
    by_name = graph.graph.by_name
    roots = [
        producer(by_name[n].inputs[0])
        for b in graph.boundaries
        for n in (b.values, b.indices)
        if n is not None
    ]
    roots += [producer(loss.tensor) for loss in graph.losses]
    roots += replica_targets(graph)
    roots += graph.tables
    own = (v for v in graph.variables if v.rule == "per-replica")
    roots += [n for v in own for n in (v.handle, v.placeholder, v.load, v.read)]
    shared = {v.handle for v in graph.variables if v.rule != "per-replica"}
    return ancestors(graph.graph, roots, stop=shared | {b.node for b in graph.batch})


def _copy(nodes: Iterable[Node], replica: Replica, shards: Mapping[str, str]) -> Iterator[Node]:
    prefix = replica_prefix(replica.rank)
    for node in copy_nodes(nodes, prefix, rewire=shards, device=lambda _: replica.device):
        if node.op == "VarHandleOp":
            shared_name = node.attrs["shared_name"]
            assert isinstance(shared_name, bytes)
            yield replace(node, attrs={**node.attrs, "shared_name": prefix.encode() + shared_name})
        else:
            yield node


@dataclass(frozen=True, slots=True)
class _Copies:
    """A captured step, which of its nodes are copied, and for whom."""

    graph: TrainGraph
    originals: set[str]
    replicas: Sequence[Replica]
    renames: Mapping[int, Renames]

    @classmethod
    def of(cls, graph: TrainGraph, originals: set[str], replicas: Sequence[Replica]) -> "_Copies":
        """Copies of these nodes for all replicas."""
        prefixes = {replica.rank: replica_prefix(replica.rank) for replica in replicas}
        renames = {
            rank: Renames(prefix, {name: prefix + name for name in originals})
            for rank, prefix in prefixes.items()
        }
        return cls(graph, originals, replicas, renames)

    def ref(self, ref: str, replica: Replica) -> str:
        """A reference of the captured graph as this replica has it."""
        return self.renames[replica.rank][ref]

    def refs(self, refs: Iterable[str], replicas: Sequence[Replica] | None = None) -> tuple[str, ...]:
        """References as all of these replicas have them, each once."""
        chosen = self.replicas if replicas is None else replicas
        return tuple(dict.fromkeys(self.ref(ref, replica) for replica in chosen for ref in refs))

    def owners(self, handle: str) -> Sequence[Replica | None]:
        """The replicas that own a copy of a variable; a single None when they share it."""
        return self.replicas if handle in self.originals else (None,)

    def shared(self, fed: set[str]) -> Iterator[Node]:
        """What exists once: it reads the first replica, and waits for all where it waited for one."""
        effects = set() if self.replicas[0].rank == 0 else set(self.graph.effects)
        for node in self.graph.graph.nodes:
            if node.name in self.originals or node.name in fed or node.name in effects:
                continue
            if self.originals.isdisjoint(map(producer, node.inputs)):
                yield node
            else:
                data = tuple(self.ref(ref, self.replicas[0]) for ref in node.data_inputs)
                waits = (f"^{name}" for name in self.refs(node.control_inputs))
                yield replace(node, inputs=(*data, *waits))

    def describe(self, made: Graph, topology: Topology) -> TrainGraph:
        """What the parts of the copied graph are."""
        graph, first = self.graph, self.replicas[0]
        return replace(
            graph,
            graph=made,
            variables=tuple(
                self._variable(v, owner) for v in graph.variables for owner in self.owners(v.handle)
            ),
            boundaries=tuple(
                b for boundary in graph.boundaries for b in self._boundaries(boundary, topology)
            ),
            regions=tuple(
                UpdateRegion(
                    variable=r.variable, nodes=self.refs(r.nodes, [c]), targets=self.refs(r.targets, [c])
                )
                for r in graph.regions
                for c in (self.replicas if r.targets[0] in self.originals else [first])
            ),
            shared_update=self.refs(graph.shared_update),
            losses=tuple(
                Loss(tensor=self.ref(graph.losses[0].tensor, r), weight=r.examples / topology.batch_size)
                for r in self.replicas
            ),
            state_targets=self.refs(graph.state_targets),
            # What is seen outside happens once in a step, where rank 0 is.
            effects=self.refs(graph.effects, [first]) if first.rank == 0 else (),
            tables=self.refs(graph.tables),
            savers=self.refs(graph.savers),
        )

    def _variable(self, v: Variable, owner: Replica | None) -> Variable:
        if owner is None:
            return v
        handle, placeholder, load, read = (
            self.ref(n, owner) for n in (v.handle, v.placeholder, v.load, v.read)
        )
        return replace(v, handle=handle, placeholder=placeholder, load=load, read=read, rank=owner.rank)

    def _boundaries(self, b: Boundary, topology: Topology) -> Iterator[Boundary]:
        crossing = tuple(self._contribution(b, replica, topology) for replica in self.replicas)
        if b.values not in self.originals:
            yield replace(b, contributions=crossing)
            return
        for replica, contribution in zip(self.replicas, crossing, strict=True):
            values = self.ref(b.values, replica)
            indices = None if b.indices is None else self.ref(b.indices, replica)
            yield replace(b, values=values, indices=indices, rank=replica.rank, contributions=(contribution,))

    def _contribution(self, b: Boundary, replica: Replica, topology: Topology) -> Contribution:
        by_name = self.graph.graph.by_name
        weights = {
            "mean": replica.examples / topology.batch_size,
            "sum": 1.0,
            "first-replica": float(replica.rank == 0),
        }
        return Contribution(
            rank=replica.rank,
            values=self.ref(by_name[b.values].inputs[0], replica),
            indices=None if b.indices is None else self.ref(by_name[b.indices].inputs[0], replica),
            weight=weights[b.rule],
        )
