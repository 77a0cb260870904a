"""Between-graph synchronisation by a transport of the workers' own, which sums while the step goes on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from strategies.ir.graph import Node
from strategies.ir.train_graph import Boundary, Contribution, TrainGraph
from strategies.numerics.exchange import hand_over, take_back, waypoint
from strategies.passes.members import Between, Members
from strategies.passes.rewire import contribute, sync_prefix
from strategies.passes.sync_all_reduce import collectives, static_dims
from strategies.program import given_token, taken_token
from strategies.tf_bridge.attrs import dtype_number
from strategies.tf_bridge.snippet import TensorSpec, trace
from strategies.topology import Replica, Topology


@dataclass(frozen=True, kw_only=True, slots=True)
class TransportAllReduce:
    """Sum the dense contributions of these variables over all workers, a vector at a time.

    A worker's replicas are summed on its host first. All vectors are handed over before the step waits for
    any: a wait holds one of the threads that backward runs on, and all workers could come to wait.

    Attributes:
        buckets: names of the variables of each bucket, in the order in which backward makes them ready.
        between: whose contributions are summed.
    """

    name: ClassVar[str] = "transport-all-reduce"
    task: int
    buckets: tuple[tuple[str, ...], ...]
    between: Between = "replicas"

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        """The step with two ends of a sum per bucket, and one more for each large tensor."""
        members = Members.of(topology, self.between)
        brought = _brought(graph, self.buckets, members.local(topology, self.task))
        if not brought:
            return graph
        host = topology.host_device(self.task)
        given: list[Node] = []
        for name, replicas in brought.items():
            given += _given(name, replicas, host)
        handed_over = [node.name for node in given if node.op == "PyFunc"]
        nodes, (previous,) = trace(waypoint, ()).splice(
            "sync/handed-over/", [], device=host, control=handed_over
        )
        added = [*given, *nodes]
        combined: dict[str, Contribution] = {}
        for name, replicas in brought.items():
            # One after the other, so that updates with the first run while later ones still travel.
            nodes, contributions = _taken(name, replicas, host, previous.removeprefix("^"))
            previous = next(node.name for node in nodes if node.op == "PyFunc")
            added += nodes
            combined |= contributions
        return contribute(graph, combined, added, sums=(*graph.sums, *brought))


def _brought(
    graph: TrainGraph, buckets: Sequence[Sequence[str]], replicas: Sequence[Replica]
) -> Mapping[str, list[list[Boundary]]]:
    """Sum → what each replica brings; sums in the order in which backward has all of their members."""
    names = {name for bucket in buckets for name in bucket}
    dense = [
        b
        for b in graph.boundaries
        if b.variable in names and b.indices is None and b.contributions and not b.contributions[0].total
    ]
    own = [{sync_prefix(b): b for b in dense if b.rank == replica.rank} for replica in replicas]
    chosen = collectives(list(own[0].values()), buckets)
    order = {name: i for i, name in enumerate(name for bucket in buckets for name in bucket)}

    def ready(name: str) -> int:
        return max(order[own[0][member].variable] for member in chosen[name].members)

    return {
        name: [[by_name[member] for member in chosen[name].members] for by_name in own]
        for name in sorted(chosen, key=ready)
    }


def _given(name: str, replicas: Sequence[Sequence[Boundary]], host: str) -> tuple[Node, ...]:
    all_of_them = [b for members in replicas for b in members]
    snippet = trace(
        hand_over,
        tuple(TensorSpec(dtype=b.dtype, shape=b.shape) for b in all_of_them),
        n_replicas=len(replicas),
    )
    nodes, _ = snippet.splice(
        f"{name}/hand-over/", [b.contributions[0].values for b in all_of_them], device=host
    )
    return _calling(given_token(name), nodes)


def _taken(
    name: str, replicas: Sequence[Sequence[Boundary]], host: str, after: str
) -> tuple[tuple[Node, ...], dict[str, Contribution]]:
    first = replicas[0]
    snippet = trace(
        take_back,
        (),
        shapes=tuple(static_dims(b) for b in first),
        dtype=dtype_number(first[0].dtype),
    )
    nodes, sums = snippet.splice(f"{name}/take-back/", [], device=host, control=[after])
    combined: dict[str, Contribution] = {}
    for members in replicas:
        for b, values in zip(members, sums, strict=True):
            rank = b.contributions[0].rank
            combined[b.values] = Contribution(rank=rank, values=values, indices=None, weight=1.0, total=True)
    return _calling(taken_token(name), nodes), combined


def _calling(token: str, nodes: tuple[Node, ...]) -> tuple[Node, ...]:
    """The nodes of a function whose call of Python has a token by now; it is traced once for all tokens."""
    return tuple(
        replace(node, attrs={**node.attrs, "token": token.encode()}) if node.op == "PyFunc" else node
        for node in nodes
    )
