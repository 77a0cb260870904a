"""Servers that contract tests share: TensorFlow never stops one, and each keeps two dozen threads.

Hundreds of tests, each with servers of its own, would end the process for want of threads.
"""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import tensorflow as tf

from harness.worker.session.capture_store import InitialValues
from harness.worker.verify.in_process import InProcessCluster, start_servers
from strategies.passes.collectives.keys import GROUP_KEY
from strategies.program import Program

_pool: dict[tuple[int, ...], list[tf.distribute.Server]] = {}
_GROUPS = 1000  # of one plan, at most
_first_group_keys = itertools.count(_GROUPS, _GROUPS)
_GROUP_INPUT = 2  # of every collective: input, group size, group key, instance key


@contextmanager
def running(programs: Sequence[Program], initial: InitialValues) -> Iterator[InProcessCluster]:
    """A cluster on servers of earlier tests, without their variables, accumulators and queues.

    Servers go back for other tests unless the one that has them fails: then peers may wait on them for ever.
    """
    shape = tuple(p.n_devices for p in programs)
    servers = _pool.pop(shape, None) or start_servers(programs)
    for server in servers:
        tf.compat.v1.Session.reset(server.target)
    with InProcessCluster(in_own_group(programs), initial, servers) as cluster:
        yield cluster
    _pool[shape] = servers


def in_own_group(programs: Sequence[Program]) -> list[Program]:
    """The programs with group keys of their own: servers remember the shapes of a group's collectives."""
    first = next(_first_group_keys)
    return [replace(p, graph_def=_with_groups(p.graph_def, first)) if p.group_leader else p for p in programs]


def _with_groups(graph_def: bytes, first: int) -> bytes:
    graph = tf.compat.v1.GraphDef.FromString(graph_def)
    keys = {n.input[_GROUP_INPUT] for n in graph.node if n.op in ("CollectiveReduceV2", "CollectiveGatherV2")}
    for node in graph.node:
        if node.name in keys:
            group_key = int(tf.make_ndarray(node.attr["value"].tensor))
            assert GROUP_KEY <= group_key < _GROUPS
            node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(first + group_key, tf.int32))
    return graph.SerializeToString()
