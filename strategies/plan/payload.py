"""Payload of a plan: bytes of values and ids that tasks send each other in a step, from the plan alone.

Formulas: in a ring all-reduce each member sends 2(N−1)/N of the buffer (Patarasuk and Yuan 2009, Bandwidth
optimal all-reduce algorithms), in a reduce-scatter or an all-gather (N−1)/N (Xu et al. 2020, Automatic
cross-replica sharding of weight update, arXiv:2004.13336; for values gathered before they are read,
Rajbhandari et al. 2020, ZeRO, arXiv:1910.02054). With parameter servers a worker pulls and pushes what other
hosts serve (Li et al. 2014, Scaling distributed machine learning with the parameter server).
"""

import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from strategies.ir.graph import DType, element_bytes, n_elements
from strategies.plan.compressors import is_added_up, payload_bytes
from strategies.plan.partitions import parts_of
from strategies.plan.schema import (
    DENSE_SYNCHRONIZERS,
    PlanNode,
    StatisticSummary,
    StepSummary,
    VariableSummary,
)
from strategies.topology import Topology

_ACCUMULATED = frozenset({"half", "float", "double"})
"""Types for which TensorFlow has accumulator kernels."""


def accumulated_type(dtype: str) -> DType:
    """Type in which a server's accumulator sums gradients of a type."""
    return DType(dtype if dtype in _ACCUMULATED else "double")


def vector_type(dtypes: Iterable[str]) -> DType:
    """Type of a worker's gradient vector under a rule."""
    return DType("double" if "double" in dtypes else "float")


@dataclass(frozen=True, slots=True, kw_only=True)
class WireTypes:
    """Types in which a plan's gradients are sent.

    Attributes:
        vector: type of a worker's gradient vector if a rule combines gradients, None if they are summed.
        are_accumulated: True if servers sum gradients as they arrive, False if each worker's gradients make
            an update.
    """

    vector: DType | None = None
    are_accumulated: bool = True

    def of_gradient(self, dtype: str) -> DType:
        """Type of a dense gradient; an accumulator casts it on arrival."""
        return self.vector or DType(dtype)

    def of_rows(self, dtype: str) -> DType:
        """Type of rows; the worker casts them before sending."""
        return self.vector or (accumulated_type(dtype) if self.are_accumulated else DType(dtype))


LENGTH_BYTES = 4
RING_LENGTHS_BYTES = 2 * 8
"""Bytes of the lengths of a worker's rows and ids, which the workers' own ring sends first."""
ID_BYTES = 8
MOST_IN_ALL_TO_ALL = 11
"""TensorFlow's all-to-all mixes up messages in a group of twelve members or more."""
AS_THEY_ARE = WireTypes()
Links: TypeAlias = Mapping[tuple[int, int], float]
"""Task, another task → bytes per step from one to the other."""
Op: TypeAlias = Literal["sum", "scatter", "gather", "pull", "push"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Flow:
    """Bytes of one exchange in a step.

    Attributes:
        op: `sum`, `scatter` and `gather` are collectives; `pull` is a server sending values, `push` a server
            receiving gradients and ids.
        n_bytes: whole payload of a collective; for a gather, all members' shares together; 0 for servers, and
            for rows, whose number is known only in a run.
    """

    op: Op
    n_bytes: float = 0.0
    links: Links


def flows_of(
    step: StepSummary,
    nodes: Sequence[PlanNode],
    topology: Topology,
    *,
    statistics: Sequence[StatisticSummary] = (),
    period: int = 1,
    steps_per_loop: int = 1,
    servers: int = 1,
    types: WireTypes = AS_THEY_ARE,
) -> Iterator[Flow]:
    """List the exchanges of a plan's step.

    Rows of sparse gradients count with their upper bound: every id of the batch is different. If equal ids
    are kept, the bound is the exact number.

    Args:
        statistics: statistics of layers that normalise over all replicas' examples.
        period: number of steps between two averages of variables, over which their bytes are spread.
        steps_per_loop: number of steps of a host loop, over which its bytes are spread.
        servers: number of workers, the first ones, that serve a copy of all variables.
        types: types of gradients sent to servers and rules.
    """
    by_name = {v.name: v for v in step.variables}
    shards = _Shards()
    for part, variable in ((part, by_name[node.variable]) for node in nodes for part in parts_of(node)):
        if part.synchronizer == "ps":
            yield from _server_flows(part, variable, topology, types)
        elif part.synchronizer == "robust-servers":
            yield from _copy_flows(part, variable, topology, servers, types)
        elif part.synchronizer == "none" and part.destination is not None:
            yield from _pull_flows(part, variable, topology)
        elif part.synchronizer == "cross-replica-sum" or part.in_parts:
            yield from core_flows(part, by_name, topology, steps_per_loop=steps_per_loop)
        elif part.synchronizer != "none":
            shards.add(part, variable)
            if not shards.scatters(part):
                yield from _collective_flows(part, variable, topology, period, types)
    yield from shards.flows(topology)
    n_bytes = sum(statistic.bytes for statistic in statistics)
    yield Flow(op="sum", n_bytes=n_bytes, links=_summed(topology, topology.n_tasks, n_bytes))


def _ring(topology: Topology, crossing: float) -> Links:
    """A ring over all members in rank order, which crosses from each task to the next."""
    n = topology.n_tasks
    return {(task, (task + 1) % n): crossing for task in range(n)} if n > 1 else {}


def _summed(topology: Topology, n_members: int, n_bytes: float) -> Links:
    return _ring(topology, 2 * (n_members - 1) / n_members * n_bytes)


def _around(shares: Sequence[float], *, stays: int) -> Links:
    """Links of a ring in which each worker passes on all workers' shares but one.

    Args:
        shares: bytes by task.
        stays: distance in the ring, counted forwards, to the worker whose share is not passed on.
    """
    n = len(shares)
    return {
        (task, (task + 1) % n): sum(shares) - shares[(task + stays) % n] for task in range(n if n > 1 else 0)
    }


def _server_flows(
    node: PlanNode, variable: VariableSummary, topology: Topology, types: WireTypes
) -> Iterator[Flow]:
    """Exchanges with a server: every replica pulls the variable or its rows, every worker pushes once.

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
        yield Flow(op="pull", links={(node.destination, task): pull})
        yield Flow(op="push", links={(task, node.destination): push + ids})


def _pull_flows(node: PlanNode, variable: VariableSummary, topology: Topology) -> Iterator[Flow]:
    assert node.destination is not None
    for task in range(topology.n_tasks):
        if task != node.destination:
            n_bytes = node.bytes * variable.reads * len(topology.local_replicas(task))
            yield Flow(op="pull", links={(node.destination, task): n_bytes})


def _copy_flows(
    node: PlanNode, variable: VariableSummary, topology: Topology, servers: int, types: WireTypes
) -> Iterator[Flow]:
    pairs = [(t, server) for t in range(topology.n_tasks) for server in range(servers) if t != server]
    pushed = gradient_bytes(node, types) * variable.crossings
    yield Flow(op="pull", links={(server, task): node.bytes for task, server in pairs})
    yield Flow(op="push", links=dict.fromkeys(pairs, pushed))


def core_flows(
    node: PlanNode, by_name: Mapping[str, VariableSummary], topology: Topology, *, steps_per_loop: int
) -> Iterator[Flow]:
    """Exchanges of a variable between the replicas of a TPU computation.

    If every replica needs only its part of a sum, each sends (N−1)/N of the buffer, and as much to gather a
    partitioned variable, for reads and after loops; if it is whole, the sum does both. Emulated,
    parts have one length, and beyond eleven replicas the whole sum goes around. Sums and gathers go around a
    ring, parts straight to their owners.
    """
    n = topology.n_replicas
    variable = by_name[node.variable]
    updated = variable if variable.slot_of is None else by_name[variable.slot_of]
    crossings = variable.crossings if node.synchronizer == "cross-replica-sum" else 0
    # An update of rows needs the whole variable and slots; one that is not elementwise needs the gradient.
    is_whole = updated.sparse or not updated.updated_by_elements or n > MOST_IN_ALL_TO_ALL
    if crossings and (is_whole or not node.in_parts):
        summed = node.bytes * crossings
        yield Flow(op="sum", n_bytes=summed, links=_summed(topology, n, summed))
    if not node.in_parts:
        return
    padded = -(-n_elements(node.shape) // n) * n * element_bytes(node.dtype)
    if crossings and not is_whole:
        yield Flow(op="scatter", n_bytes=padded * crossings, links=_to_owners(topology, padded * crossings))
    n_reads = 1 if updated.sparse else max(variable.reads, 1) if variable.kind == "trainable" else 0
    gathered = padded * (n_reads + 1 / steps_per_loop)
    yield Flow(op="gather", n_bytes=gathered, links=_ring(topology, (n - 1) / n * gathered))


def _to_owners(topology: Topology, n_bytes: float) -> Links:
    n_local = [len(topology.local_replicas(task)) for task in range(topology.n_tasks)]
    return {
        (task, other): n * n_other * n_bytes / topology.n_replicas
        for task, n in enumerate(n_local)
        for other, n_other in enumerate(n_local)
        if other != task
    }


def _collective_flows(
    node: PlanNode, variable: VariableSummary, topology: Topology, period: int, types: WireTypes
) -> Iterator[Flow]:
    """Exchanges by collectives: gradients of all replicas or of one per worker, or averages of variables."""
    n, encoded = node.n_members(topology), encoded_bytes(node)
    if node.synchronizer == "average":
        links = _ring(topology, 2 * (n - 1) / n * encoded / period)
        yield Flow(op="sum", n_bytes=encoded / period, links=links)
        return
    crossings = dense_crossings(node, variable)
    by_rule = node.synchronizer == "robust-gather"
    if is_summed(node) and not by_rule:
        links = _ring(topology, 2 * (n - 1) / n * encoded * crossings)
        yield Flow(op="sum", n_bytes=encoded * crossings, links=links)
    else:
        share = (gradient_bytes(node, types) if by_rule else encoded) * crossings
        n_encoders = node.n_encoders(topology)
        in_ring = node.transport == "tcp"
        links = (
            _around([k * share for k in n_encoders], stays=1) if in_ring else _ring(topology, (n - 1) * share)
        )
        yield Flow(op="gather", n_bytes=share * sum(n_encoders), links=links)
    if node.sparse:
        yield Flow(op="gather", links=_row_links(node, variable, topology, types))


def _row_links(node: PlanNode, variable: VariableSummary, topology: Topology, types: WireTypes) -> Links:
    n, n_times = node.n_members(topology), _row_crossings(variable)
    shards = [[r.examples for r in topology.local_replicas(t)] for t in range(topology.n_tasks)]
    if node.transport == "tcp":
        shares = [most_rows_bytes(node, variable, sum(shard)) + RING_LENGTHS_BYTES for shard in shards]
        # The next worker's share arrives last and is not passed on.
        return _around([share * n_times for share in shares], stays=1)
    most = max(map(sum, shards) if n == topology.n_tasks else map(max, shards))
    dtype = types.of_rows(node.dtype) if node.synchronizer == "robust-gather" else node.dtype
    gathered = (n - 1) * (most_rows_bytes(node, variable, most, dtype) + LENGTH_BYTES)
    return _ring(topology, gathered * n_times)


Bucket = tuple[int | None, str, bool]
ValueBucket = tuple[bool, Bucket]


@dataclass(frozen=True, slots=True)
class _Shards:
    """Bytes that each replica owns of each bucket: of gradients that go to owners, and of values.

    A bucket is a group of the plan, a type, and whether the workers' own ring carries it. Values that travel
    before they are read are apart from those that travel once they are new.
    """

    gradients: dict[Bucket, Counter[int]] = field(default_factory=dict)
    values: dict[ValueBucket, Counter[int]] = field(default_factory=dict)

    @staticmethod
    def scatters(node: PlanNode) -> bool:
        """True if only a variable's owner gets the sum of its gradient."""
        return node.owner is not None and not node.sparse and not node.whole_gradient

    def add(self, node: PlanNode, variable: VariableSummary) -> None:
        if node.owner is None:
            return
        bucket = node.group, node.dtype, node.transport == "tcp"
        n_times = 1 if node.gathered else variable.updates
        self.values.setdefault((node.gathered, bucket), Counter())[node.owner] += node.bytes * n_times
        if self.scatters(node):
            self.gradients.setdefault(bucket, Counter())[node.owner] += node.bytes * variable.crossings

    def flows(self, topology: Topology) -> Iterator[Flow]:
        """Exchanges of all buckets.

        In TensorFlow's, two replicas exchange gradients in the length of the larger of their shares, and
        values go around a ring in the length of the largest. The workers' own ring sums a worker's replicas
        first and carries shares as long as they are.
        """
        for (*_, in_ring), shares in self.gradients.items():
            # A worker's own share is not passed on when it arrives.
            by_task = _by_task(shares, topology)
            links = _around(by_task, stays=0) if in_ring else _between_replicas(shares, topology)
            yield Flow(op="scatter", n_bytes=sum(shares.values()), links=links)
        for (_, (*_, in_ring)), shares in self.values.items():
            # The next worker's share arrives last and is not passed on.
            by_task, longest = _by_task(shares, topology), max(shares.values())
            others = topology.n_replicas - 1
            links = _around(by_task, stays=1) if in_ring else _ring(topology, others * longest)
            yield Flow(op="gather", n_bytes=sum(shares.values()), links=links)


def _by_task(shares: Counter[int], topology: Topology) -> list[int]:
    return [
        sum(shares[replica.rank] for replica in topology.local_replicas(task))
        for task in range(topology.n_tasks)
    ]


def _between_replicas(shares: Counter[int], topology: Topology) -> Links:
    links: Counter[tuple[int, int]] = Counter()
    for one, other in itertools.permutations(topology.replicas(), 2):
        if one.task != other.task:
            links[one.task, other.task] += max(shares[one.rank], shares[other.rank])
    return links


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """[task i][task j] → bytes per step that i sends to j, rounded to whole bytes.

    Attributes:
        pulled: part of `sent` that consists of values read from servers.
    """

    sent: tuple[tuple[int, ...], ...]
    pulled: tuple[tuple[int, ...], ...]


def payload_of(flows: Sequence[Flow], n_tasks: int) -> Payload:
    """Payload of a plan: bytes that tasks send each other."""
    pulls = [flow for flow in flows if flow.op == "pull"]
    return Payload(sent=_matrix(flows, n_tasks), pulled=_matrix(pulls, n_tasks))


def _matrix(flows: Iterable[Flow], n_tasks: int) -> tuple[tuple[int, ...], ...]:
    sent = [[0.0] * n_tasks for _ in range(n_tasks)]
    for flow in flows:
        for (task, other), n_bytes in flow.links.items():
            sent[task][other] += n_bytes
    return tuple(tuple(round(value) for value in row) for row in sent)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveBytes:
    """Bytes per step of whole payloads in collectives of all replicas.

    Attributes:
        all_gather_bytes: bytes of all replicas' shares together.
        left_out: variables that are not counted: those on servers, and those with sparse gradients, whose
            size is known only in a run.
    """

    all_reduce_bytes: float
    reduce_scatter_bytes: float
    all_gather_bytes: float
    left_out: tuple[str, ...] = ()


def collective_bytes_of(flows: Iterable[Flow], nodes: Iterable[PlanNode]) -> CollectiveBytes:
    """Bytes that a plan's replicas sum, scatter and gather."""
    n_bytes: defaultdict[Op, float] = defaultdict(float)
    for flow in flows:
        n_bytes[flow.op] += flow.n_bytes
    left_out = [
        node.variable
        for node in nodes
        if node.synchronizer in ("ps", "robust-servers")
        or (node.sparse and node.synchronizer not in DENSE_SYNCHRONIZERS)
    ]
    return CollectiveBytes(
        all_reduce_bytes=n_bytes["sum"],
        reduce_scatter_bytes=n_bytes["scatter"],
        all_gather_bytes=n_bytes["gather"],
        left_out=tuple(left_out),
    )


def _row_crossings(variable: VariableSummary) -> int:
    return variable.crossings - variable.dense_crossings


def dense_crossings(node: PlanNode, variable: VariableSummary) -> int:
    """Number of times per step that a variable's dense gradient or its new state crosses replicas."""
    return variable.dense_crossings if node.sparse else variable.crossings


def is_summed(node: PlanNode) -> bool:
    """True if gradients are summed on the network; others are first gathered from all members."""
    return node.compressor is None or is_added_up(node.compressor)


def encoded_bytes(node: PlanNode) -> int:
    """Bytes of a gradient as it is sent."""
    return node.bytes if node.compressor is None else payload_bytes(node.shape, node.dtype, node.compressor)


def gradient_bytes(node: PlanNode, types: WireTypes) -> int:
    """Bytes of a dense gradient in the type in which it is sent."""
    return element_bytes(types.of_gradient(node.dtype)) * n_elements(node.shape)


def row_bytes(node: PlanNode, dtype: str | None = None) -> int:
    """Bytes of one row of a sparse gradient, in this type or its own."""
    return element_bytes(dtype or node.dtype) * n_elements(node.shape[1:])


def most_rows_bytes(
    node: PlanNode, variable: VariableSummary, examples: int, dtype: str | None = None
) -> float:
    """Upper bound of the bytes of rows and ids of a sparse gradient for this many examples.

    Args:
        dtype: type in which rows are sent; None for their own type.
    """
    return _rows(node, variable, examples) * (row_bytes(node, dtype) + ID_BYTES)


def _rows(node: PlanNode, variable: VariableSummary, examples: int) -> float:
    rows = _looked_up(node, variable, examples)
    return min(float(node.shape[0]), rows) if node.merges_rows else rows


def _looked_up(node: PlanNode, variable: VariableSummary, examples: int) -> float:
    """Number of rows that these examples look up, equal ids counted; a part of a table has its share."""
    table = float(variable.shape[0])
    rows = table if variable.rows_per_example is None else variable.rows_per_example * examples
    return rows * node.shape[0] / max(table, 1.0)
