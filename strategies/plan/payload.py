"""Payload of a plan: the bytes of values and ids that tasks send each other in a step, from the plan alone.

Formulas: in a ring all-reduce each member sends 2(N−1)/N of the buffer (Patarasuk and Yuan 2009, Bandwidth
optimal all-reduce algorithms); with parameter servers a worker pulls and pushes what other hosts serve (Li et
al. 2014, Scaling distributed machine learning with the parameter server).
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from strategies.ir.sizes import element_bytes, n_elements
from strategies.plan.compressed_payload import is_added_up, payload_bytes
from strategies.plan.core_payload import CorePayload
from strategies.plan.partitions import parts_of
from strategies.plan.schema import PlanNode, StatisticSummary, StepSummary, VariableSummary
from strategies.plan.shard_payload import Shards, around
from strategies.plan.wire_types import WireTypes
from strategies.topology import Topology

LENGTH_BYTES = 4
RING_LENGTHS_BYTES = 2 * 8
"""Of the rows and ids of a worker, as the workers' own ring tells them."""
ID_BYTES = 8
Matrix = list[list[float]]
AS_THEY_ARE = WireTypes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """[task i][task j] → bytes per step that i sends to j, rounded to a whole number of them.

    Attributes:
        sent: all of them. pulled: of these, values that servers send back to be read.
    """

    sent: tuple[tuple[int, ...], ...]
    pulled: tuple[tuple[int, ...], ...]


def payload_of(
    step: StepSummary,
    nodes: Sequence[PlanNode],
    topology: Topology,
    *,
    statistics: Sequence[StatisticSummary] = (),
    period: int = 1,
    steps_per_loop: int = 1,
    servers: int = 1,
    types: WireTypes = AS_THEY_ARE,
) -> Payload:
    """What tasks send each other.

    Rows of sparse gradients count with their upper bound: every id of the batch different. Where equal ids
    are kept, that is what travels.

    Args:
        statistics: of batches, of the layers that take them of all replicas' examples.
        period: steps from one averaging of variables to the next; its bytes are spread over all of them.
        steps_per_loop: steps of a host loop, likewise.
        servers: the first workers, each with a copy of what such servers tell.
        types: in which gradients travel to servers, and to rules.
    """
    sent, pulled = _nothing(topology), _nothing(topology)
    by_name = {v.name: v for v in step.variables}
    shards = Shards()
    for part, variable in ((part, by_name[node.variable]) for node in nodes for part in parts_of(node)):
        if part.synchronizer == "ps":
            _add_parameter_server(sent, pulled, part, variable, topology, types)
        elif part.synchronizer == "robust-servers":
            _add_copies(sent, pulled, part, variable, servers, types)
        elif part.synchronizer == "none" and part.destination is not None:
            _add_pulls(sent, pulled, part, variable, topology)
        elif part.synchronizer == "cross-replica-sum" or part.in_parts:
            cores = CorePayload.of(part, by_name, topology.n_replicas, steps_per_loop=steps_per_loop)
            cores.add_to(sent, topology)
        elif part.synchronizer != "none":
            shards.add(part, variable)
            if not shards.scatters(part):
                n_steps = period if part.synchronizer == "average" else 1
                _add_collective(sent, part, variable, topology, n_steps, types)
    shards.send(sent, topology)
    _add_ring(sent, topology.n_tasks, sum(each.bytes for each in statistics))
    return Payload(sent=_rounded(sent), pulled=_rounded(pulled))


def server_bytes(nodes: Sequence[PlanNode], topology: Topology) -> tuple[int, ...]:
    """Task → bytes of variables and slots that it serves."""
    held = [0] * topology.n_tasks
    for part in (part for node in nodes for part in parts_of(node)):
        if part.destination is not None:
            held[part.destination] += part.bytes
    return tuple(held)


def worker_bytes(nodes: Sequence[PlanNode]) -> int:
    """Bytes of variables and slots that one replica has, the one that has the most."""
    common, alone = 0, Counter[int]()
    for part in (part for node in nodes for part in parts_of(node)):
        if part.owner is not None and (part.synchronizer == "none" or part.gathered):
            alone[part.owner] += part.bytes
        elif part.destination is None:
            common += part.bytes
    return common + max(alone.values(), default=0)


def _nothing(topology: Topology) -> Matrix:
    return [[0.0] * topology.n_tasks for _ in range(topology.n_tasks)]


def _rounded(matrix: Matrix) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(round(value) for value in row) for row in matrix)


def _add_parameter_server(
    sent: Matrix,
    pulled: Matrix,
    node: PlanNode,
    variable: VariableSummary,
    topology: Topology,
    types: WireTypes,
) -> None:
    """Each replica pulls the variable, or the rows it looks up; each worker pushes once for its replicas.

    With a proxy each worker pulls the variable once, and for each replica again after an update in the step.
    """
    assert node.destination is not None
    pushed_row_bytes = row_bytes(node, types.of_rows(node.dtype)) + ID_BYTES
    by_rule = types.vector is not None and variable.kind == "trainable"
    dense_bytes = gradient_bytes(node, types) if by_rule else encoded_bytes(node)
    for task in range(topology.n_tasks):
        if task == node.destination:
            continue
        pull = push = ids = 0.0
        for replica in topology.local_replicas(task):
            if node.sparse:
                rows = _rows(node, variable, replica.examples)
                ids_sent = _looked_up(node, variable, replica.examples)
                pull += ids_sent * row_bytes(node) * variable.reads
                ids += ids_sent * ID_BYTES * variable.reads
                push += rows * pushed_row_bytes * _row_crossings(variable)
            else:
                pull += node.bytes * (variable.reads - (1 if node.proxy and pull else 0))
        push += dense_bytes * dense_crossings(node, variable)
        sent[node.destination][task] += pull
        pulled[node.destination][task] += pull
        sent[task][node.destination] += push + ids


def _add_pulls(
    sent: Matrix, pulled: Matrix, node: PlanNode, variable: VariableSummary, topology: Topology
) -> None:
    """Each replica pulls what it reads on a server although no gradient of it crosses."""
    assert node.destination is not None
    for task in range(topology.n_tasks):
        if task != node.destination:
            pull = node.bytes * variable.reads * len(topology.local_replicas(task))
            sent[node.destination][task] += pull
            pulled[node.destination][task] += pull


def _add_copies(
    sent: Matrix,
    pulled: Matrix,
    node: PlanNode,
    variable: VariableSummary,
    servers: int,
    types: WireTypes,
) -> None:
    """Each worker pulls the variable from all servers, and pushes its gradient to all; rows at most."""
    for task, server in ((t, s) for t in range(len(sent)) for s in range(servers) if t != s):
        sent[server][task] += node.bytes
        pulled[server][task] += node.bytes
        sent[task][server] += gradient_bytes(node, types) * variable.crossings


def _add_collective(
    sent: Matrix,
    node: PlanNode,
    variable: VariableSummary,
    topology: Topology,
    n_steps: int,
    types: WireTypes,
) -> None:
    """A ring over all members in rank order crosses from each task to the next once in so many steps.

    Where one replica of each task takes part, it brings the rows of all of the task's examples.
    """
    n = node.n_members(topology)
    if node.synchronizer == "average":
        _add_crossing(sent, _summed_bytes(node, n) / n_steps)
        return
    crossings = dense_crossings(node, variable)
    if node.transport == "tcp" and not is_summed(node):
        around(sent, [k * encoded_bytes(node) * crossings for k in node.n_encoders(topology)], stays=1)
        return
    by_rule = node.synchronizer == "robust-gather"
    dense_bytes = (n - 1) * gradient_bytes(node, types) if by_rule else _summed_bytes(node, n)
    _add_crossing(sent, dense_bytes * crossings)
    if not node.sparse:
        return
    shards = [[r.examples for r in topology.local_replicas(t)] for t in range(topology.n_tasks)]
    if node.transport == "tcp":
        shares = [most_rows_bytes(node, variable, sum(each)) + RING_LENGTHS_BYTES for each in shards]
        # That of the next worker comes last and stays.
        around(sent, [share * _row_crossings(variable) for share in shares], stays=1)
        return
    most = max(map(sum, shards) if n == topology.n_tasks else map(max, shards))
    dtype = types.of_rows(node.dtype) if by_rule else node.dtype
    gathered = (n - 1) * (most_rows_bytes(node, variable, most, dtype) + LENGTH_BYTES)
    _add_crossing(sent, gathered * _row_crossings(variable))


def _row_crossings(variable: VariableSummary) -> int:
    return variable.crossings - variable.dense_crossings


def dense_crossings(node: PlanNode, variable: VariableSummary) -> int:
    """Times in a step that a dense gradient of a variable, or its new state, crosses replicas."""
    return variable.dense_crossings if node.sparse else variable.crossings


def _summed_bytes(node: PlanNode, n: int) -> float:
    """What goes from each of n members to the next of a sum, or of an exchange of what cannot be added up."""
    if is_summed(node):
        return 2 * (n - 1) / n * encoded_bytes(node)
    return (n - 1) * encoded_bytes(node)


def is_summed(node: PlanNode) -> bool:
    """Whether gradients are added up on their way; others are gathered from all and added after."""
    return node.compressor is None or is_added_up(node.compressor)


def _add_ring(sent: Matrix, n: int, n_bytes: int) -> None:
    """A ring all-reduce of so many bytes between n members, one of each task."""
    _add_crossing(sent, 2 * (n - 1) / n * n_bytes)


def _add_crossing(sent: Matrix, crossing: float) -> None:
    """What goes from each task to the next."""
    n_tasks = len(sent)
    for task in range(n_tasks if n_tasks > 1 else 0):
        sent[task][(task + 1) % n_tasks] += crossing


def encoded_bytes(node: PlanNode) -> int:
    """Bytes of a gradient as it travels."""
    return node.bytes if node.compressor is None else payload_bytes(node.shape, node.dtype, node.compressor)


def gradient_bytes(node: PlanNode, types: WireTypes) -> int:
    """Bytes of a dense gradient in the type in which it travels."""
    return element_bytes(types.of_gradient(node.dtype)) * n_elements(node.shape)


def row_bytes(node: PlanNode, dtype: str | None = None) -> int:
    """Bytes of one row of a sparse gradient, in this type or its own."""
    return element_bytes(dtype or node.dtype) * n_elements(node.shape[1:])


def most_rows_bytes(
    node: PlanNode, variable: VariableSummary, examples: int, dtype: str | None = None
) -> float:
    """Upper bound of the bytes of the rows and ids that so many examples make of a sparse gradient.

    Args:
        dtype: in which rows travel; None for their own.
    """
    return _rows(node, variable, examples) * (row_bytes(node, dtype) + ID_BYTES)


def _rows(node: PlanNode, variable: VariableSummary, examples: int) -> float:
    """Upper bound of the rows that these examples send; a part of a table has its share."""
    rows = _looked_up(node, variable, examples)
    return min(float(node.shape[0]), rows) if node.merges_rows else rows


def _looked_up(node: PlanNode, variable: VariableSummary, examples: int) -> float:
    """Rows that these examples look up, each as often as its id comes; a part of a table has its share."""
    table = float(variable.shape[0])
    rows = table if variable.rows_per_example is None else variable.rows_per_example * examples
    return rows * node.shape[0] / max(table, 1.0)
