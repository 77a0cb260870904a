"""Graphs and devices in TensorFlow's runtime: imports, contexts, settings, event files."""

import itertools
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import tensorflow as tf
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.eager.context import Context
from tensorflow.python.framework import c_api_util

from strategies.ir.graph import Graph
from strategies.tf_bridge.graphdef import graphdef_from_graph


def on_own_devices(graph_def: tf.compat.v1.GraphDef) -> None:
    """Rename devices to their type and number, in place, for a session without servers."""
    bodies = (function.node_def for function in graph_def.library.function)
    for node in itertools.chain(graph_def.node, *bodies):
        if node.device:
            device = tf.DeviceSpec.from_string(node.device)
            node.device = device.replace(job=None, replica=None, task=None).to_string()


def context_of_all_gpus(logical: Mapping[Any, Sequence[tf.config.LogicalDeviceConfiguration]]) -> Context:
    """Make a second eager context with all GPUs of this process.

    A process has one allocator per GPU, which sessions, servers and contexts share.

    Args:
        logical: logical devices of each physical GPU that is split into several.
    Source:
        GPUProcessState::GetGPUAllocator in TensorFlow's gpu_process_state.cc; TFE_GetMemoryInfo.
    """
    context = Context()
    for gpu, devices in logical.items():
        context.set_logical_device_configuration(gpu, devices)
    return context


def named_graph(graph_def: tf.compat.v1.GraphDef) -> tf.Graph:
    """Import a graph without creating Python objects for its operations; sessions refer to them by name.

    Raises:
        tf.errors.InvalidArgumentError: TensorFlow refuses the graph.
    """
    graph = tf.Graph()
    add_named(graph, graph_def)
    return graph


def add_named(graph: tf.Graph, graph_def: tf.compat.v1.GraphDef) -> None:
    """Add nodes to a graph like `named_graph`, with the same errors."""
    options: Any = c_api_util.ScopedTFImportGraphDefOptions()
    serialized = pywrap_tf_session.TF_NewBufferFromString(graph_def.SerializeToString())
    try:
        with graph._c_graph.get() as inner:  # noqa: SLF001
            results = pywrap_tf_session.TF_GraphImportGraphDefWithResults(inner, serialized, options.options)
        c_api_util.ScopedTFImportGraphDefResults(results)  # which frees them
    finally:
        pywrap_tf_session.TF_DeleteBuffer(serialized)


@cache
def unoptimized_config() -> bytes:
    """Serialized settings that run a function without TensorFlow's graph optimizers.

    The optimizers process every function before its first call, which takes longer than many steps.
    """
    config = tf.compat.v1.ConfigProto()
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return bytes(config.SerializeToString(deterministic=True))


def write_event_file(folder: Path, graph: Graph) -> None:
    """Write a graph to a new folder for TensorBoard.

    Raises:
        OSError: the folder cannot be written.
    """
    folder.mkdir(parents=True)
    try:
        writer = tf.summary.create_file_writer(str(folder))
        with writer.as_default():
            tf.summary.graph(graphdef_from_graph(graph))
        writer.close()
    except tf.errors.OpError as error:
        raise OSError(None, error.message) from error
