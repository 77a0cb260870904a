"""Lookup tables, which a step captures by their eager handle, made again inside of the graph."""

import gc

import tensorflow as tf

from strategies.capture.captured_constants import constant_of
from strategies.capture.tracing import with_effects
from strategies.errors import CaptureError
from strategies.ir.assembly.traced import TracedTable
from strategies.ir.names import node_slug
from strategies.ir.traversal import copy_nodes
from strategies.tf_bridge.graphdef import graph_from_graphdef

# Resources whose contents are what their initializer makes; a mutable table's would be lost.
_REMADE = frozenset({"HashTableV2", "SummaryWriter"})


def remade_table(placeholder: str, handle: tf.Tensor) -> TracedTable:
    """The resource behind an eager handle as nodes that make and initialise it.

    Args:
        placeholder: what stands for the handle in the trace.
    Raises:
        CaptureError: when nobody knows how the resource is made, or it holds what an initializer does not.
    """
    owner = _owner(handle)
    if owner is None:
        raise CaptureError(
            f"train step: captured resources must be variables or lookup tables, got {placeholder!r}; use "
            "variables by their methods and not by their handles alone, make iterators part of the dataset, "
            "and summary writers with experimental_trackable=True",
            node=placeholder,
        )
    handles: list[tf.Tensor] = []

    def make() -> None:
        # Where a table has no handle it makes one, here in the graph, and its initializer takes that.
        owner._resource_handle = None  # noqa: SLF001 - no public way; TrackableResource documents the two methods
        owner._initialize()  # noqa: SLF001
        handles.append(owner.resource_handle)

    try:
        concrete = tf.function(make, autograph=False).get_concrete_function()
    finally:
        owner._resource_handle = handle  # noqa: SLF001
    if handles[0].op.type not in _REMADE:
        raise CaptureError(
            f"train step: captured tables must not change, got {type(owner).__name__} {placeholder!r}; use "
            "tf.lookup.StaticHashTable, or a tf.Variable for what changes",
            node=placeholder,
        )
    constants = {i.op.name: constant_of(i.op.name, e) for e, i in concrete.graph.captures}
    graph = graph_from_graphdef(concrete.graph.as_graph_def())
    prefix = f"tables/{node_slug(placeholder)}/"
    nodes = copy_nodes([constants.get(node.name, node) for node in graph.nodes], prefix)
    return TracedTable(
        placeholder=placeholder,
        nodes=nodes,
        handle=prefix + handles[0].op.name,
        initializers=tuple(prefix + op.name for op in with_effects(concrete) if op.type not in _REMADE),
    )


def _owner(handle: tf.Tensor) -> tf.saved_model.experimental.TrackableResource | None:
    """The object that made a resource. Tables know their handles, but no handle knows its table."""
    kind = tf.saved_model.experimental.TrackableResource
    for candidate in gc.get_objects():
        if issubclass(type(candidate), kind) and candidate.resource_handle is handle:
            return candidate
    return None
