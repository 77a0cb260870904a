"""TensorFlow's servers for workers of one process, used again by one cluster after another.

TensorFlow never stops a server: each keeps its ports, two dozen threads and about 40 MB until the
process ends.
"""

import itertools
import socket
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import tensorflow as tf

from harness.worker.session.tensorflow_settings import start_server
from strategies.program import Program
from strategies.tf_bridge.program import COLLECTIVE_OPS

HOST = "127.0.0.1"
# A worker that waits for a sum holds one; more workers than threads would wait for ever.
_N_INTER_OP = 32
_GROUPS = 1 << 12  # of one plan: a key for each pair of 64 replicas
_GROUP_INPUT = 2  # of every collective: input, group size, group key, instance key


@dataclass(frozen=True)
class ServerPool:
    """Servers that no cluster has at the moment, without any variable, accumulator or queue.

    Servers of a cluster that failed are not to come back: steps may wait on them for ever.
    """

    _idle: dict[tuple[int, ...], list[list[tf.distribute.Server]]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def take(self, programs: Sequence[Program]) -> list[tf.distribute.Server]:
        """A server for each program's task, started where none is idle."""
        try:
            return self._idle[_shape(programs)].pop()
        except IndexError:
            return _started(programs)

    def give_back(self, programs: Sequence[Program], servers: list[tf.distribute.Server]) -> None:
        """Take in servers whose sessions are closed, and free what these left there."""
        for server in servers:
            tf.compat.v1.Session.reset(server.target)
        self._idle[_shape(programs)].append(servers)


POOL = ServerPool()
"""Of this process."""

_first_group_keys = itertools.count(_GROUPS, _GROUPS)


def in_own_group(programs: Sequence[Program]) -> list[Program]:
    """The programs with group keys of their own: servers remember the shapes of a group's collectives."""
    first = next(_first_group_keys)
    return [replace(p, graph_def=_with_groups(p.graph_def, first)) if p.group_leader else p for p in programs]


def _with_groups(graph_def: bytes, first: int) -> bytes:
    graph = tf.compat.v1.GraphDef.FromString(graph_def)
    for nodes in (graph.node, *(function.node_def for function in graph.library.function)):
        # In a function's body a reference names the output too.
        keys = {n.input[_GROUP_INPUT].partition(":")[0] for n in nodes if n.op in COLLECTIVE_OPS}
        for node in nodes:
            if node.name in keys:
                group_key = int(tf.make_ndarray(node.attr["value"].tensor))
                node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(first + group_key, tf.int32))
    return bytes(graph.SerializeToString())


def _shape(programs: Sequence[Program]) -> tuple[int, ...]:
    return tuple(program.n_devices for program in programs)


def _started(programs: Sequence[Program]) -> list[tf.distribute.Server]:
    addresses = _free_addresses(len(programs))
    return [start_server(p.task, addresses, p.n_devices, n_inter_op=_N_INTER_OP) for p in programs]


def _free_addresses(n: int) -> list[str]:
    """Addresses that were free a moment ago; all are held until all are known, so that they differ."""
    holders = [socket.socket() for _ in range(n)]
    try:
        for holder in holders:
            holder.bind((HOST, 0))
        return [f"{HOST}:{holder.getsockname()[1]}" for holder in holders]
    finally:
        for holder in holders:
            holder.close()
