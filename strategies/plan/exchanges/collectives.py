"""Exchanges by collectives: gradients in buckets, rows, averages and batch statistics."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import numpy as np

from strategies.plan.compressors import BY_NAME
from strategies.plan.exchanges.flow import Carrier, Flow, Op, Parts, RunFacts
from strategies.plan.partitions import AlikeParts
from strategies.plan.payload import (
    dense_crossings,
    encoded_bytes,
    gradient_bytes,
    is_summed,
    most_rows_bytes,
    row_crossings,
)
from strategies.plan.schema import Compression, PlanNode, StatisticSummary, VariableSummary

LENGTH_BYTES = 4
RING_LENGTHS_BYTES = 2 * 8
"""Bytes of the lengths of a worker's rows and ids, which the workers' own ring sends first."""
SWAPPED_BYTES = 1 << 20
"""Longest vector that two workers exchange whole on their own ring: one round less, more additions."""
LARGE_BYTES = 1 << 20
"""Bytes from which a tensor is not sent in one message with the rest of its bucket.

It need not wait for the others, nor be copied into one buffer with them.
"""
PIECE_BYTES = 4 << 20
MAX_PIECES = 4
"""Most pieces of a message of TensorFlow's collectives, sent at once; each has `PIECE_BYTES` at least.

One collective of 64 MB runs at a third of the speed of the same bytes in four pieces.
"""


def collective_flows(reduced: Parts, run: RunFacts) -> Iterator[Flow]:
    """Exchanges by collectives: gradients of all replicas or of one per worker, or averages of variables."""
    dense: defaultdict[tuple[object, ...], list[tuple[AlikeParts, VariableSummary]]] = defaultdict(list)
    rows: defaultdict[tuple[object, ...], list[tuple[AlikeParts, VariableSummary]]] = defaultdict(list)
    for parts, variable in reduced:
        node = parts.node
        averaged = node.synchronizer == "average"
        if averaged or dense_crossings(node, variable):
            dense[_message(parts, run)].append((parts, variable))
        if node.sparse and not averaged:
            in_bucket = node.transport == "tcp"
            rows[(node.synchronizer, node.group if in_bucket else parts.name)].append((parts, variable))
    yield from (_dense_flow(members, run) for members in dense.values())
    yield from (_rows_flow(members, run) for members in rows.values())


def _is_alone(node: PlanNode, run: RunFacts) -> bool:
    """True if a gradient is sent in a message of its own."""
    return node.group is None or (encoded_bytes(node) >= LARGE_BYTES and not run.packs_are_whole)


def _message(parts: AlikeParts, run: RunFacts) -> tuple[object, ...]:
    """Key of the message that has a gradient."""
    node = parts.node
    if node.synchronizer == "robust-gather":
        return (node.synchronizer,)
    own = (parts.name, node.group) if _is_alone(node, run) else (None, node.group)
    return node.synchronizer, node.transport, node.dtype, node.compressor, *own


def _dense_flow(members: Parts, run: RunFacts) -> Flow:
    node = members[0][0].node
    by_rule, averaged = node.synchronizer == "robust-gather", node.synchronizer == "average"
    carrier, n = run.carrier(node), node.n_members(run.topology)
    period = run.execution.period if averaged else 1
    n_rounds = 1 if averaged else max(dense_crossings(parts.node, variable) for parts, variable in members)

    def sent_bytes(parts: AlikeParts, variable: VariableSummary) -> int:
        encoded = gradient_bytes(parts.node, run.types) if by_rule else encoded_bytes(parts.node)
        return parts.n * encoded * (1 if averaged else dense_crossings(parts.node, variable))

    share = sum(sent_bytes(*member) for member in members)
    if is_summed(node) and not by_rule:
        op: Op = "sum"
        n_bytes, links = share / period, run.sum_ring(n, share, period=period)
    else:
        op = "gather"
        n_encoders = node.n_encoders(run.topology)
        in_ring = carrier == "tcp"
        n_bytes = float(share * sum(n_encoders))
        links = (
            run.own_ring([k * share for k in n_encoders], stays=1) if in_ring else run.ring((n - 1) * share)
        )
    return Flow(
        op=op,
        values="averages" if averaged else "gradients",
        variables=tuple(dict.fromkeys(parts.name for parts, _ in members)),
        transport=carrier,
        links=links,
        n_members=n,
        n_bytes=n_bytes,
        value_bytes=sum(parts.n * parts.node.bytes for parts, _ in members),
        compressor=node.compressor,
        n_messages=_n_messages([parts for parts, _ in members], carrier, run),
        n_rounds=n_rounds * (2 if node.compressor is not None and _in_two_stages(node.compressor) else 1),
        period=period,
    )


def _in_two_stages(compression: Compression) -> bool:
    """True if a second sum needs the first one: PowerSGD's right factors come from the sum of the left."""
    return BY_NAME[compression.name].codec == "power"


def _n_messages(members: Sequence[AlikeParts], carrier: Carrier, run: RunFacts) -> int:
    """Number of messages of these gradients: of each one if it is alone, else of all together."""
    node = members[0].node
    by_rule = node.synchronizer == "robust-gather"
    is_cut = node.compressor is None or BY_NAME[node.compressor.name].codec in ("half", "bfloat16")
    in_pieces = carrier == "collectives" and is_cut and not by_rule and not run.packs_are_whole

    def n_pieces(n_bytes: int) -> int:
        return n_pieces_of(n_bytes) if in_pieces else 1

    if by_rule or not _is_alone(node, run):
        return n_pieces(sum(parts.n * encoded_bytes(parts.node) for parts in members))
    return sum(parts.n * n_pieces(encoded_bytes(parts.node)) for parts in members)


def n_pieces_of(n_bytes: float) -> int:
    """Number of pieces of a message of TensorFlow's collectives."""
    return min(MAX_PIECES, max(1, int(n_bytes) // PIECE_BYTES))


def _rows_flow(members: Parts, run: RunFacts) -> Flow:
    """Rows of sparse gradients that all members gather, after the number of rows that each member has."""
    node, topology = members[0][0].node, run.topology
    n, in_ring = node.n_members(topology), node.transport == "tcp"

    def most_bytes(examples: Sequence[int], *, lengths: int) -> float:
        """Most bytes of a share of replicas with these examples, with the lengths that are sent first."""
        n_bytes = 0.0
        for parts, variable in members:
            by_rule = parts.node.synchronizer == "robust-gather"
            dtype = run.types.of_rows(node.dtype) if by_rule else None
            rows_bytes = most_rows_bytes(parts.node, variable, run.shards(*examples), dtype) + lengths
            n_bytes += parts.n * rows_bytes * row_crossings(variable)
        return n_bytes

    is_of_tasks = in_ring or n == topology.n_tasks
    most = max(run.kinds if is_of_tasks else ((max(kind),) for kind in run.kinds), key=sum)
    if in_ring:
        by_kind = np.array([most_bytes(kind, lengths=RING_LENGTHS_BYTES) for kind in run.kinds])
        # The next worker's share arrives last and is not passed on.
        links = run.own_ring(by_kind[np.array(topology.kinds().of_task)], stays=1)
    else:
        links = run.ring((n - 1) * most_bytes(most, lengths=LENGTH_BYTES))
    n_parts = sum(parts.n for parts, _ in members)
    return Flow(
        op="gather",
        values="gradients",
        variables=tuple(dict.fromkeys(parts.name for parts, _ in members)),
        transport=run.carrier(node),
        links=links,
        n_members=n,
        value_bytes=sum(
            parts.n * most_rows_bytes(parts.node, variable, run.shards(*most)) for parts, variable in members
        ),
        n_messages=1 if in_ring else 2 * n_parts,
        n_rounds=2 * max(1, *(row_crossings(variable) for _, variable in members)),
    )


def statistics_flows(statistics: Sequence[StatisticSummary], run: RunFacts) -> Iterator[Flow]:
    """Sums of batch statistics over workers: those of one level of the graph, of all layers, together."""
    levels: defaultdict[int, Counter[str]] = defaultdict(Counter)
    for statistic in statistics:
        for level in statistic.levels:
            levels[level][statistic.layer] += statistic.bytes // len(statistic.levels)
    n = run.topology.n_tasks
    for level in sorted(levels):
        n_bytes = sum(levels[level].values())
        yield Flow(
            op="sum",
            values="statistics",
            variables=tuple(levels[level]),
            transport="collectives",
            links=run.sum_ring(n, n_bytes),
            n_members=n,
            n_bytes=n_bytes,
            value_bytes=n_bytes,
        )
