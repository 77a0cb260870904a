"""Payload of a plan: bytes of values and ids that tasks send each other in a step, from the plan alone.

Formulas: in a ring all-reduce each member sends 2(N−1)/N of the buffer (Patarasuk and Yuan 2009, Bandwidth
optimal all-reduce algorithms), in a reduce-scatter or an all-gather (N−1)/N (Xu et al. 2020, Automatic
cross-replica sharding of weight update, arXiv:2004.13336; for values gathered before they are read,
Rajbhandari et al. 2020, ZeRO, arXiv:1910.02054). With parameter servers a worker pulls and pushes what other
hosts serve (Li et al. 2014, Scaling distributed machine learning with the parameter server).
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from strategies.ir.graph import DType, element_bytes, n_elements
from strategies.plan.compressors import is_added_up, is_encoded, payload_bytes
from strategies.plan.node_rules import is_owned
from strategies.plan.partitions import parts_of
from strategies.plan.schema import (
    DENSE_SYNCHRONIZERS,
    Plan,
    PlanNode,
    StatisticSummary,
    StepSummary,
    VariableSummary,
)
from strategies.topology import Topology

_ACCUMULATED = frozenset({"half", "float", "double"})
"""Types for which TensorFlow has kernels of accumulators."""


def accumulated_type(dtype: str) -> DType:
    """Type in which a server's accumulator sums gradients of a type."""
    return DType(dtype if dtype in _ACCUMULATED else "double")


def vector_type(dtypes: Iterable[str]) -> DType:
    """Type of a worker's gradients as the vector that a rule sees."""
    return DType("double" if "double" in dtypes else "float")


@dataclass(frozen=True, slots=True, kw_only=True)
class WireTypes:
    """Types in which a plan's gradients travel.

    Attributes:
        vector: of a worker's gradients if a rule combines them, None if they are summed.
        are_accumulated: servers sum gradients as they come; otherwise each worker's make an update.
    """

    vector: DType | None = None
    are_accumulated: bool = True

    def of_gradient(self, dtype: str) -> DType:
        """Type of a dense gradient; an accumulator casts it on arrival."""
        return self.vector or DType(dtype)

    def of_rows(self, dtype: str) -> DType:
        """Type of rows; the worker casts them before it sends them."""
        return self.vector or (accumulated_type(dtype) if self.are_accumulated else DType(dtype))


Bucket = tuple[int | None, str, bool]
ValueBucket = tuple[bool, Bucket]


@dataclass(frozen=True, slots=True)
class Shards:
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

    def send(self, sent: list[list[float]], topology: Topology) -> None:
        """Add the bytes of all exchanges.

        In TensorFlow's, two replicas exchange gradients in the length of the larger of their shares, and
        values go around a ring in the length of the largest. The workers' own ring sums a worker's replicas
        first and carries shares as long as they are.
        """
        for (*_, in_ring), shares in self.gradients.items():
            if in_ring:
                # A worker's own share stays when it comes.
                around(sent, _by_task(shares, topology), stays=0)
            else:
                _between_replicas(sent, shares, topology)
        for (_, (*_, in_ring)), shares in self.values.items():
            if in_ring:
                # The share of the next worker comes last and stays.
                around(sent, _by_task(shares, topology), stays=1)
            else:
                longest = (topology.n_replicas - 1) * max(shares.values())
                for task in range(topology.n_tasks if topology.n_tasks > 1 else 0):
                    sent[task][(task + 1) % topology.n_tasks] += longest


def around(sent: list[list[float]], shares: Sequence[float], *, stays: int) -> None:
    """Each worker passes on all workers' shares but one.

    Args:
        shares: bytes by task.
        stays: places further in the ring of the worker whose share is not passed on.
    """
    n = len(shares)
    for task in range(n if n > 1 else 0):
        sent[task][(task + 1) % n] += sum(shares) - shares[(task + stays) % n]


def _by_task(shares: Counter[int], topology: Topology) -> list[int]:
    return [
        sum(shares[replica.rank] for replica in topology.local_replicas(task))
        for task in range(topology.n_tasks)
    ]


def _between_replicas(sent: list[list[float]], shares: Counter[int], topology: Topology) -> None:
    replicas = topology.replicas()
    for one in replicas:
        for other in replicas:
            if one.task != other.task:
                sent[one.task][other.task] += max(shares[one.rank], shares[other.rank])


MOST_IN_ALL_TO_ALL = 11
"""TensorFlow's all-to-all mixes up messages in a group of twelve members or more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CorePayload:
    """Bytes of a variable that the replicas of a TPU computation exchange in a step.

    If every replica needs only its part of a sum, each sends (N−1)/N of the buffer, and as much to gather a
    variable that lies in parts; if it lies whole, the sum takes both. Emulated, parts have one length, and
    beyond eleven replicas the whole sum goes around.

    Attributes:
        summed: of what is summed whole.
        scattered: of what is summed in parts.
        gathered: of what is put together from parts, for reads and after loops.
    """

    summed: float
    scattered: float
    gathered: float

    @classmethod
    def of(
        cls, node: PlanNode, by_name: Mapping[str, VariableSummary], n_replicas: int, *, steps_per_loop: int
    ) -> "CorePayload":
        """Bytes of one variable; the steps of a loop share its final gather."""
        variable = by_name[node.variable]
        updated = variable if variable.slot_of is None else by_name[variable.slot_of]
        is_summed = node.synchronizer == "cross-replica-sum"
        if not node.in_parts:
            return cls(summed=node.bytes * variable.crossings * is_summed, scattered=0, gathered=0)
        padded = -(-n_elements(node.shape) // n_replicas) * n_replicas * element_bytes(node.dtype)
        # An update of rows takes the variable and its slots whole, one that is not by elements the gradient.
        by_rows = updated.sparse
        is_whole = by_rows or not by_elements(updated) or n_replicas > MOST_IN_ALL_TO_ALL
        n_reads = 1 if by_rows else max(variable.reads, 1) if variable.kind == "trainable" else 0
        return cls(
            summed=node.bytes * variable.crossings * (is_summed and is_whole),
            scattered=padded * variable.crossings * (is_summed and not is_whole),
            gathered=padded * (n_reads + 1 / steps_per_loop),
        )

    def add_to(self, sent: list[list[float]], topology: Topology) -> None:
        """Sums and gathers go around a ring, parts straight to their owners."""
        n, n_tasks = topology.n_replicas, topology.n_tasks
        around = 2 * (n - 1) / n * self.summed + (n - 1) / n * self.gathered
        for task in range(n_tasks if n_tasks > 1 else 0):
            sent[task][(task + 1) % n_tasks] += around
            for other in range(n_tasks):
                if other != task:
                    pairs = len(topology.local_replicas(task)) * len(topology.local_replicas(other))
                    sent[task][other] += pairs * self.scattered / n


def by_elements(v: VariableSummary) -> bool:
    """True if each element's update needs only that element of the gradient, unlike norms and row means."""
    is_apart = v.kind != "trainable" or {axis for axis, n in enumerate(v.shape) if n > 1} <= set(v.apart_axes)
    return is_apart and not v.gradient_shared


LENGTH_BYTES = 4
RING_LENGTHS_BYTES = 2 * 8
"""Of the rows and ids of a worker, as the workers' own ring tells them."""
ID_BYTES = 8
Matrix = list[list[float]]
AS_THEY_ARE = WireTypes()


@dataclass(frozen=True, slots=True, kw_only=True)
class Payload:
    """[task i][task j] → bytes per step that i sends to j, rounded to whole bytes.

    Attributes:
        pulled: of `sent`, values that servers send back to be read.
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
    """Bytes that tasks send each other.

    Rows of sparse gradients count with their upper bound: every id of the batch different. If equal ids are
    kept, that is what travels.

    Args:
        statistics: of layers that take those of all replicas' examples.
        period: steps from one average of variables to the next, over which its bytes are spread.
        steps_per_loop: steps of a host loop, likewise.
        servers: number of first workers that serve a copy of all variables.
        types: of gradients on their way to servers and rules.
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
    """Bytes of variables and slots that each task serves."""
    held = [0] * topology.n_tasks
    for part in (part for node in nodes for part in parts_of(node)):
        if part.destination is not None:
            held[part.destination] += part.bytes
    return tuple(held)


def worker_bytes(nodes: Sequence[PlanNode]) -> int:
    """Bytes of variables and slots of the replica that has the most."""
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
    """A ring over all members in rank order crosses from each task to the next once every n_steps."""
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
    """Bytes from each of n members to the next in a sum, or in an exchange of what cannot be summed."""
    if is_summed(node):
        return 2 * (n - 1) / n * encoded_bytes(node)
    return (n - 1) * encoded_bytes(node)


def is_summed(node: PlanNode) -> bool:
    """True if gradients are summed on their way; others are gathered from all members first."""
    return node.compressor is None or is_added_up(node.compressor)


def _add_ring(sent: Matrix, n: int, n_bytes: int) -> None:
    _add_crossing(sent, 2 * (n - 1) / n * n_bytes)


def _add_crossing(sent: Matrix, crossing: float) -> None:
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
    """Upper bound of the bytes of rows and ids that these examples make of a sparse gradient.

    Args:
        dtype: in which rows travel; None for their own.
    """
    return _rows(node, variable, examples) * (row_bytes(node, dtype) + ID_BYTES)


def _rows(node: PlanNode, variable: VariableSummary, examples: int) -> float:
    rows = _looked_up(node, variable, examples)
    return min(float(node.shape[0]), rows) if node.merges_rows else rows


def _looked_up(node: PlanNode, variable: VariableSummary, examples: int) -> float:
    """Rows that these examples look up, with equal ids; a part of a table has its share."""
    table = float(variable.shape[0])
    rows = table if variable.rows_per_example is None else variable.rows_per_example * examples
    return rows * node.shape[0] / max(table, 1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveBytes:
    """Bytes per step of whole payloads in collectives of all replicas.

    Attributes:
        all_gather_bytes: of all replicas' shares together.
        left_out: variables on servers or with gradients of rows, which only a run knows.
    """

    all_reduce_bytes: float
    reduce_scatter_bytes: float
    all_gather_bytes: float
    left_out: tuple[str, ...] = ()


def collective_bytes_of(
    step: StepSummary,
    nodes: Sequence[PlanNode],
    topology: Topology,
    *,
    statistics: Sequence[StatisticSummary] = (),
    period: int = 1,
    steps_per_loop: int = 1,
) -> CollectiveBytes:
    """Bytes that a plan's replicas sum, scatter and gather; arguments as for `payload_of`."""
    by_name = {v.name: v for v in step.variables}
    summed, gathered, scattered = float(sum(each.bytes for each in statistics)), 0.0, 0.0
    shards = Shards()
    left_out: dict[str, None] = {}
    for part, variable in ((part, by_name[node.variable]) for node in nodes for part in parts_of(node)):
        if part.synchronizer == "ps" or (part.sparse and part.synchronizer not in DENSE_SYNCHRONIZERS):
            left_out[variable.name] = None
        if part.synchronizer == "cross-replica-sum" or part.in_parts:
            cores = CorePayload.of(part, by_name, topology.n_replicas, steps_per_loop=steps_per_loop)
            summed += cores.summed
            scattered += cores.scattered
            gathered += cores.gathered
            continue
        if part.synchronizer in ("none", "ps"):
            continue
        shards.add(part, variable)
        if part.synchronizer == "average":
            summed += encoded_bytes(part) / period
        elif not shards.scatters(part):
            n_bytes = encoded_bytes(part) * dense_crossings(part, variable)
            summed += n_bytes if is_summed(part) else 0
            gathered += 0 if is_summed(part) else n_bytes * sum(part.n_encoders(topology))
    return CollectiveBytes(
        all_reduce_bytes=summed,
        reduce_scatter_bytes=scattered + sum(sum(shares.values()) for shares in shards.gradients.values()),
        all_gather_bytes=gathered + sum(sum(shares.values()) for shares in shards.values.values()),
        left_out=tuple(left_out),
    )


def n_waiting(plan: Plan) -> int:
    """Most threads of a worker that wait for its ring at a time: for gradients, encoded ones, owners' values.

    Gradients are waited for once all of their kind are handed over. Owners hand over new values while others
    of their kind, or gradients of the next update, may already be waited for.
    """
    in_ring = [node for node in plan.nodes if node.transport == "tcp"]
    encoded = list(filter(is_encoded, in_ring))
    return int(len(in_ring) > len(encoded)) + int(bool(encoded)) + int(any(map(is_owned, in_ring)))
