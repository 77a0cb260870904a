"""A task's push in one turn: an update finds the whole of a contribution on the servers, or nothing of it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from strategies.ir.control_flow import LoopFrames
from strategies.ir.graph import DType, Node, joined
from strategies.ir.replica_updates import late_nodes
from strategies.ir.resource_uses import resource_uses
from strategies.ir.train_graph import TrainGraph
from strategies.numerics.updates import share
from strategies.passes.parameter_server.accumulator import DOUBLE, INT64, Accumulator, Pushed, push_node
from strategies.passes.parameter_server.queues import turn_queue
from strategies.passes.parameter_server.update_loop import tallies
from strategies.tf_bridge.snippet import trace
from strategies.topology import Topology


@dataclass(frozen=True, slots=True, kw_only=True)
class PushInTurn:
    """Nodes that push.

    Attributes:
        take: the node that takes the turn, and with it the number of updates made.
        give: the node that gives the turn back when everything is pushed.
    """

    nodes: tuple[Node, ...]
    take: str
    give: str


def push_in_turn(
    graph: TrainGraph, accumulators: Sequence[Accumulator], task: int, topology: Topology, *, step: str | None
) -> PushInTurn:
    """Lay everything ready on the servers, take the turn, push, give the turn back.

    Args:
        accumulators: one for each boundary that crosses.
        step: tensor of the number of updates that the step began with; a contribution to an older one is
            dropped. None for the number at the turn, which drops nothing.
    """
    reads = _reads(graph)
    host = topology.host_device(task)
    prepared: list[Node] = []
    landed: list[Node] = []
    ready = []
    for a in accumulators:
        pushed = a.prepare(a.boundary.contributions[0], host)
        prepared += pushed.nodes
        pushed, arrived = _on_server(a, pushed, reads.get(a.boundary.variable, ()))
        landed += arrived
        ready.append(pushed)
    gathered = joined(((n.name, n.device) for n in landed), "turn/landed")
    turn = turn_queue(topology)
    take = turn.take("take", (node.name for node in gathered))
    step = take.name if step is None else step
    constants, pushes = _pushes(accumulators, ready, step, take.name)
    shares, tallied = _tallied(task, step, take.name, topology)
    pushes += tallied
    done = joined(((n.name, n.device) for n in pushes), "turn/pushed")
    give = turn.put("give", take.name, (node.name for node in done))
    nodes = (turn.handle, *prepared, *constants, *shares, *landed, *gathered, take, *pushes, *done, give)
    return PushInTurn(nodes=nodes, take=take.name, give=give.name)


def _reads(graph: TrainGraph) -> dict[str, tuple[str, ...]]:
    """Variable → its reads by forward and backward, or the ends of the loops that they are in."""
    shared = [v for v in graph.variables if v.rank is None]
    apart = late_nodes(graph, shared) | graph.update_nodes() | {v.read for v in shared}
    uses, loops = resource_uses(graph.graph), LoopFrames.of(graph.graph)
    return {v.name: loops.outside(r for r in uses[v.handle].reads if r not in apart) for v in shared}


def _on_server(a: Accumulator, pushed: Pushed, after: Sequence[str]) -> tuple[Pushed, list[Node]]:
    """What a task pushes, once it lies on the accumulator's server, and the nodes that bring it there."""
    values = _landing(a, "values", pushed.values, a.dtype, after)
    if pushed.ids is None:
        return replace(pushed, values=values.name), [values]
    ids = _landing(a, "ids", pushed.ids, INT64, after)
    return replace(pushed, values=values.name, ids=ids.name), [values, ids]


def _landing(a: Accumulator, part: str, ref: str, dtype: DType, after: Iterable[str]) -> Node:
    return Node(
        name=f"{a.handle.name}/landed_{part}",
        op="Identity",
        inputs=(ref, *(f"^{name}" for name in after)),
        attrs={"T": dtype},
        device=a.device,
    )


def _pushes(
    accumulators: Sequence[Accumulator], ready: Sequence[Pushed], step: str, take: str
) -> tuple[list[Node], list[Node]]:
    """Accumulators with the constants of their pushes, and the pushes, which wait for the turn."""
    constants: list[Node] = []
    pushes = []
    for a, pushed in zip(accumulators, ready, strict=True):
        before, push = a.apply_after_others(pushed, step, [take])
        constants += [a.handle, *before]
        pushes.append(push)
    return constants, pushes


def _tallied(task: int, step: str, take: str, topology: Topology) -> tuple[list[Node], list[Node]]:
    """Tallies with the task's share of the batch, and the pushes that add it to them."""
    examples = sum(replica.examples for replica in topology.local_replicas(task))
    nodes: list[Node] = []
    pushes = []
    for handle in tallies(topology):
        # Any number would do for an arrival.
        spliced, (ref,) = trace(share, (), value=examples / topology.batch_size).splice(
            f"{handle.name}/share/", [], device=handle.device
        )
        nodes += [handle, *spliced]
        pushes.append(push_node(handle, step, ref, DOUBLE, [take]))
    return nodes, pushes
