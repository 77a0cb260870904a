"""Bytes of variables that lie in memory, as TensorFlow's own tables of resources tell."""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import tensorflow as tf

v1 = tf.compat.v1
Holdings: TypeAlias = Mapping[tuple[int, str], int]
"""(Task, name) of each variable that has a value → its bytes."""


def held_by_servers(
    graph_def: tf.compat.v1.GraphDef, target: str, config: tf.compat.v1.ConfigProto, task: int
) -> Holdings:
    """What servers hold of the variables that a program knows of, its own or another's.

    A session of its own looks them up: one with an update under way takes no more operations.

    Args:
        target: of this worker's server. config: of the program's session.
        task: where a variable without a device is.
    """
    handles = [node for node in graph_def.node if node.op == "VarHandleOp"]
    graph = tf.Graph()
    with graph.as_default():
        tf.graph_util.import_graph_def(v1.GraphDef(node=handles, versions=graph_def.versions), name="")
        resources = [graph.get_tensor_by_name(f"{node.name}:0") for node in handles]
        have_values = [tf.raw_ops.VarIsInitializedOp(resource=r) for r in resources]
        shapes = [tf.raw_ops.VariableShape(input=r, out_type=tf.int64) for r in resources]
    with v1.Session(target, graph=graph, config=config) as session:
        there = session.run(have_values)
        dims = iter(session.run([shape for shape, has in zip(shapes, there, strict=True) if has]))
    return {
        _place(node, task): int(next(dims).prod()) * tf.as_dtype(node.attr["dtype"].type).size
        for node, has in zip(handles, there, strict=True)
        if has
    }


def held_eagerly(variables: Iterable[tuple[str, tf.Variable]], task: int | None = None) -> Holdings:
    """What variables made eagerly take.

    Args:
        variables: by names that differ.
        task: where they are; None goes by their devices.
    """
    return {
        (tf.DeviceSpec.from_string(v.device).task if task is None else task, name): v.shape.num_elements()
        * v.dtype.size
        for name, v in variables
    }


def _place(node: tf.compat.v1.NodeDef, task: int) -> tuple[int, str]:
    """Where a variable is, by the name under which it is known there."""
    named = tf.DeviceSpec.from_string(node.device).task
    # One name may stand for a variable on each of several devices.
    name = node.attr["shared_name"].s.decode() or node.name
    return task if named is None else named, f"{node.device} {name}"
