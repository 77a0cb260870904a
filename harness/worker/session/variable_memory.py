"""Bytes of variables in memory, from TensorFlow's own tables of resources."""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import tensorflow as tf

from harness.worker.session.device_batches import STAGED
from harness.worker.session.named_session import NamedSession

v1 = tf.compat.v1
Holdings: TypeAlias = Mapping[tuple[int, str], int]
"""(Task, name) of each variable with a value → its bytes."""

_LOOKUPS = "held-bytes"


def lookups(graph_def: tf.compat.v1.GraphDef) -> tf.compat.v1.GraphDef:
    """Nodes that return whether each variable of a graph has a value, and its shape; see `held_bytes`."""
    graph = v1.GraphDef(versions=graph_def.versions)
    for node in _handles(graph_def):
        handle = graph.node.add()
        handle.CopyFrom(node)
        handle.name = f"{_LOOKUPS}/{node.name}"
        handle.attr["shared_name"].s = _resource(node).encode()
        handle.attr.pop("_class", None)  # a name of a node that may not exist here
        del handle.input[:]  # it has no inputs, and its dependencies may not exist here
        for part, op in (("has-value", "VarIsInitializedOp"), ("shape", "VariableShape")):
            shape_node = graph.node.add(
                name=f"{handle.name}/{part}", op=op, input=[handle.name], device=node.device
            )
            if op == "VariableShape":
                shape_node.attr["out_type"].type = tf.int64.as_datatype_enum
    return graph


def held_bytes(session: NamedSession, graph_def: tf.compat.v1.GraphDef, task: int) -> Holdings:
    """Bytes in memory of all variables that a program knows, on any worker.

    Args:
        session: session on the devices or servers that hold them, with the nodes of `lookups`.
        task: number of the task of variables without a device.
    """
    handles = _handles(graph_def)
    have_values = session.run([f"{_LOOKUPS}/{node.name}/has-value" for node in handles], {})
    there = [node for node, has in zip(handles, have_values, strict=True) if has]
    shapes = session.run([f"{_LOOKUPS}/{node.name}/shape" for node in there], {})
    return {
        _place(node, task): int(shape.prod()) * tf.as_dtype(node.attr["dtype"].type).size
        for node, shape in zip(there, shapes, strict=True)
    }


def held_eagerly(variables: Iterable[tuple[str, tf.Variable]], task: int | None = None) -> Holdings:
    """Bytes of eager variables.

    Args:
        variables: variables with distinct names.
        task: number of their task; None reads it from their devices.
    """
    return {
        (tf.DeviceSpec.from_string(v.device).task if task is None else task, name): v.shape.num_elements()
        * v.dtype.size
        for name, v in variables
    }


def _handles(graph_def: tf.compat.v1.GraphDef) -> list[tf.compat.v1.NodeDef]:
    return [node for node in graph_def.node if node.op == "VarHandleOp" and not node.name.startswith(STAGED)]


def _resource(handle: tf.compat.v1.NodeDef) -> str:
    return handle.attr["shared_name"].s.decode() or str(handle.name)


def _place(handle: tf.compat.v1.NodeDef, task: int) -> tuple[int, str]:
    named = tf.DeviceSpec.from_string(handle.device).task
    # One name may refer to a variable on each of several devices.
    return task if named is None else named, f"{handle.device} {_resource(handle)}"
