"""Exchanges with parameter servers: what workers pull and push, packed as the servers' messages are."""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from strategies.plan.exchanges.flow import Flow, Op, Parts, RunFacts, Values
from strategies.plan.links import ServerLinks
from strategies.plan.partitions import AlikeParts
from strategies.plan.payload import (
    ID_BYTES,
    dense_crossings,
    encoded_bytes,
    gradient_bytes,
    looked_up,
    most_rows,
    row_bytes,
    row_crossings,
)
from strategies.plan.schema import Compression, PlanNode, VariableSummary

SMALL_BYTES = 64 << 10
"""Most bytes of a value that shares a message between a worker and a server."""
_PACKED = ("half", "float", "double")
"""Types of gradients that share a message to a server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Served:
    """Values of one variable that servers and workers exchange.

    Attributes:
        pack: messages of one server in the same pack are one message; None if it is sent alone.
        servers: tasks that serve it; several times if they have several parts.
        n_bytes: bytes to or from a task of each kind, for each of these.
    """

    op: Op
    values: Values
    pack: str | None
    name: str
    servers: Sequence[int]
    n_bytes: Sequence[float]
    value_bytes: float
    compressor: Compression | None = None
    n_messages: int = 1
    n_rounds: int = 1


def server_flows(served: Parts, run: RunFacts) -> Iterator[Flow]:
    """Exchanges with servers: every replica pulls variables or their rows, every worker pushes once."""
    messages: defaultdict[tuple[str, ...], list[_Served]] = defaultdict(list)
    for parts, variable in served:
        for value in _served_values(parts, variable, run):
            if any(value.n_bytes):
                place = ("alone", value.name) if value.pack is None else ("packed", value.pack)
                messages[value.op, value.values, *place].append(value)
    for values in messages.values():
        yield from _by_servers(values, run)


def _served_values(parts: AlikeParts, variable: VariableSummary, run: RunFacts) -> Iterator[_Served]:
    synchronizer = parts.node.synchronizer
    if synchronizer == "robust-servers":
        yield from _served_copies(parts, variable, run)
        return
    if synchronizer == "ps" and parts.node.sparse:
        yield from _served_rows(parts, variable, run)
    else:
        yield _pulled(parts, variable, run)
    if synchronizer == "ps":
        yield _pushed(parts, variable, run)


def _pulled(parts: AlikeParts, variable: VariableSummary, run: RunFacts) -> _Served:
    """Value that replicas read; with a proxy once for all, and for each again after an update in the step."""
    node, n_replicas = parts.node, [len(examples) for examples in run.kinds]
    shared = 1 if node.proxy and variable.reads else 0
    return _Served(
        op="pull",
        values="read values",
        pack=node.dtype if _is_small(node) else None,
        name=node.variable,
        servers=parts.destinations,
        n_bytes=[node.bytes * (variable.reads * n - shared * (n - 1)) for n in n_replicas],
        value_bytes=node.bytes,
        n_messages=1 if shared else max(n_replicas),
        n_rounds=max(variable.reads, 1),
    )


def _pushed(parts: AlikeParts, variable: VariableSummary, run: RunFacts) -> _Served:
    """Dense gradient or new forward state that a worker sends."""
    node = parts.node
    by_rule = run.types.vector is not None and variable.kind == "trainable"
    is_packed = node.compressor is None and node.dtype in _PACKED and _is_small(node)
    sent_bytes = gradient_bytes(node, run.types) if by_rule else encoded_bytes(node)
    crossings = dense_crossings(node, variable)
    return _Served(
        op="push",
        values="gradients",
        pack="vector" if by_rule else node.dtype if is_packed else None,
        name=node.variable,
        servers=parts.destinations,
        n_bytes=[sent_bytes * crossings] * len(run.kinds),
        value_bytes=node.bytes,
        compressor=node.compressor,
        n_rounds=max(crossings, 1),
    )


def _is_small(node: PlanNode) -> bool:
    return -1 not in node.shape and node.bytes <= SMALL_BYTES


def _served_rows(parts: AlikeParts, variable: VariableSummary, run: RunFacts) -> Iterator[_Served]:
    """Rows that replicas look up by ids, and rows of the gradient that a worker sends."""
    node, reads, crossings = parts.node, variable.reads, row_crossings(variable)
    looked_up_rows = [sum(looked_up(node, variable, run.shards(n)) for n in kind) for kind in run.kinds]
    rows = [sum(most_rows(node, variable, run.shards(n)) for n in kind) for kind in run.kinds]
    pushed_row_bytes = row_bytes(node, run.types.of_rows(node.dtype)) + ID_BYTES
    n_replicas = max(map(len, run.kinds))
    exchanges: tuple[tuple[Op, Values, list[float], int, int, int], ...] = (
        ("push", "ids", looked_up_rows, ID_BYTES, n_replicas, reads),
        ("pull", "read values", looked_up_rows, row_bytes(node), n_replicas, reads),
        ("push", "gradients", rows, pushed_row_bytes, 2, crossings),
    )
    for op, values, n_rows, bytes_of_row, n_messages, n_rounds in exchanges:
        yield _Served(
            op=op,
            values=values,
            pack=None,
            name=node.variable,
            servers=parts.destinations,
            n_bytes=[n * bytes_of_row * n_rounds for n in n_rows],
            value_bytes=max(n_rows) * bytes_of_row,
            n_messages=n_messages,
            n_rounds=max(n_rounds, 1),
        )


def _served_copies(parts: AlikeParts, variable: VariableSummary, run: RunFacts) -> Iterator[_Served]:
    """Value that every worker reads on each server, and its gradient, which every server gets."""
    node = parts.node
    gradients = gradient_bytes(node, run.types) * variable.crossings
    exchanges: tuple[tuple[Op, Values, str | None, int, int], ...] = (
        ("pull", "read values", None, node.bytes, 1),
        ("push", "gradients", "vector", gradients, max(variable.crossings, 1)),
    )
    for op, values, pack, n_bytes, n_rounds in exchanges:
        yield _Served(
            op=op,
            values=values,
            pack=pack,
            name=node.variable,
            servers=range(run.n_servers),
            n_bytes=[n_bytes] * len(run.kinds),
            value_bytes=node.bytes,
            n_rounds=n_rounds,
        )


def _by_servers(values: Sequence[_Served], run: RunFacts) -> Iterator[Flow]:
    """Flows of values that each server packs, or of one value: a flow for servers of the same variables."""
    names = list(dict.fromkeys(value.name for value in values))
    numbers = {name: number for number, name in enumerate(names)}
    servers = np.unique(np.concatenate([np.array(value.servers) for value in values]))
    n_bytes = np.zeros((len(servers), len(run.kinds)))
    value_bytes, n_messages = np.zeros((2, len(servers)))
    serves = np.zeros((len(servers), len(names)), bool)
    for value in values:
        places = np.searchsorted(servers, value.servers)
        np.add.at(n_bytes, places, np.array(value.n_bytes))
        np.add.at(value_bytes, places, value.value_bytes)
        merge = np.add if value.pack is None else np.maximum
        merge.at(n_messages, places, value.n_messages)
        serves[places, numbers[value.name]] = True
    alike: defaultdict[bytes, list[int]] = defaultdict(list)
    for place, served in enumerate(np.packbits(serves, axis=1)):
        alike[served.tobytes()].append(place)
    first, n_rounds = values[0], max(value.n_rounds for value in values)
    for chosen in alike.values():
        yield Flow(
            op=first.op,
            values=first.values,
            variables=tuple(names[k] for k in np.flatnonzero(serves[chosen[0]])),
            transport="grpc",
            links=ServerLinks(
                kinds=run.topology.kinds(),
                servers=servers[chosen],
                n_bytes=n_bytes[chosen],
                from_servers=first.op == "pull",
            ),
            n_members=run.topology.n_tasks,
            value_bytes=float(value_bytes[chosen].sum()),
            compressor=first.compressor,
            n_messages=int(n_messages[chosen].max()),
            n_rounds=n_rounds,
        )
