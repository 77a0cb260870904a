"""Token queues by which tasks wait for each other, and update servers one at a time."""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping

from strategies.errors import StrategyError
from strategies.ir.graph import Node, Shape, producer
from strategies.ir.resource_uses import resource_uses
from strategies.ir.tensor_proto import const
from strategies.ir.train_graph import TrainGraph
from strategies.ir.traversal import descendants
from strategies.passes.tensor_queue import INT32, INT64, TensorQueue
from strategies.topology import UPDATER, Topology


def turn_queue(topology: Topology, *more: Shape) -> TensorQueue:
    """Queue with one number, the updates made; the task that holds it has exclusive access to the servers.

    Args:
        more: shapes of further int64 tensors that go with the number.
    """
    device = topology.host_device(UPDATER)
    return TensorQueue.of("turn", (INT64,) * (1 + len(more)), device, shapes=(Shape(()), *more))


def waiting_for_turn(graph: TrainGraph, within: Container[str], take: str) -> tuple[Node, ...]:
    """Nodes of a step; those in `within` that use shared variables wait for the turn.

    Otherwise variables that no gradient reaches (a step counter) would be updated as soon as a run begins.
    """
    shared = [v for v in graph.variables if v.rank is None]
    handles = {v.handle for v in shared}
    # Loads and reads outside steps need no turn.
    by_itself = {name for v in shared for name in (v.read, v.load)}
    return tuple(
        node.waiting_for(take)
        if node.name in within and node.name not in by_itself and not handles.isdisjoint(node.data_inputs)
        else node
        for node in graph.graph.nodes
    )


def on_servers(
    graph: TrainGraph, targets: Iterable[str], destinations: Mapping[str, int], topology: Topology
) -> Iterator[tuple[str, str]]:
    """Nodes on the devices of the variables that they assign, which are not placed yet."""
    served = {v.handle: destinations.get(v.name, UPDATER) for v in graph.variables if v.rank is None}
    for target in targets:
        used = (served[ref] for ref in graph.graph.by_name[target].data_inputs if ref in served)
        yield target, topology.host_device(next(used, UPDATER))


def check_gradients_come_first(graph: TrainGraph, knob: str) -> None:
    """Refuse a step that computes gradients from variables that it has already updated.

    Raises:
        StrategyError: there is such a gradient; the message names the first one.
    """
    uses = resource_uses(graph.graph)
    loads = {v.load for v in graph.variables}
    writes = {w for v in graph.variables if v.rank is None for w in uses[v.handle].writes if w not in loads}
    late = descendants(graph.graph, writes)
    for boundary in graph.boundaries:
        if any(producer(c.values) in late for c in boundary.contributions):
            raise StrategyError(
                f"variable {boundary.variable!r}: {knob} needs all gradients before the first update, got "
                "one after it; leave it out"
            )


def give_token(name: str, number: int, device: str, after: Iterable[str]) -> tuple[Node, Node, Node]:
    """Nodes that put a token into a queue after other nodes; the last node puts it.

    Args:
        name: name by which the other task finds the queue. device: device of the queue.
    """
    queue = TensorQueue.of_tokens(name, device)
    token = const(f"{name}/token", INT32, number, device=device)
    return queue.handle, token, queue.put("give", [token.name], after)


def await_token(name: str, device: str, after: Iterable[str]) -> tuple[Node, Node]:
    """Nodes that wait for a token after other nodes; the last node waits."""
    queue = TensorQueue.of_tokens(name, device)
    return queue.handle, queue.take("await", after)


FAN_OUT = 8
"""Number of tasks to which a task gives tokens."""


def tokens_down(
    root: int,
    task: int,
    n_tasks: int,
    *,
    name: Callable[[int], str],
    device: Callable[[int], str],
    after: Iterable[str],
) -> list[tuple[Node, ...]]:
    """Nodes by which a task takes the token that the root gives to all others, and passes it on.

    Tokens go down a tree, so that neither the root nor its graph grows with the number of tasks.

    Args:
        name: function that returns the name of a task's queue. device: function that returns a task's device.
        after: nodes before which the root gives no token, or another task takes none.
    Returns:
        Groups of nodes; the last node of each is to run.
    """
    order = [root, *(other for other in range(n_tasks) if other != root)]
    place = order.index(task)
    groups: list[tuple[Node, ...]] = []
    if place:
        groups.append(await_token(name(task), device(order[(place - 1) // FAN_OUT]), after))
        after = [groups[0][-1].name]
    below = order[FAN_OUT * place + 1 : FAN_OUT * (place + 1) + 1]
    return groups + [give_token(name(other), other, device(task), after) for other in below]
