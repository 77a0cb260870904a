"""A GraphDef in TensorFlow without a Python object for each operation; whoever uses it knows their names.

`tf.graph_util.import_graph_def` makes these objects, and takes ten times as long as TensorFlow itself does.
"""

from typing import Any

import tensorflow as tf
from tensorflow.python.client import pywrap_tf_session
from tensorflow.python.framework import c_api_util


def named_graph(graph_def: tf.compat.v1.GraphDef) -> tf.Graph:
    """Import a graph; `Graph.get_operation_by_name` does not know of its operations, a session does.

    Raises:
        tf.errors.InvalidArgumentError: TensorFlow refuses the graph, or an input of a node is not in it.
    """
    graph = tf.Graph()
    add_named(graph, graph_def)
    return graph


def add_named(graph: tf.Graph, graph_def: tf.compat.v1.GraphDef) -> None:
    """Add nodes to a graph, as `named_graph` does; errors as there."""
    options: Any = c_api_util.ScopedTFImportGraphDefOptions()
    serialized = pywrap_tf_session.TF_NewBufferFromString(graph_def.SerializeToString())
    try:
        with graph._c_graph.get() as inner:  # noqa: SLF001
            results = pywrap_tf_session.TF_GraphImportGraphDefWithResults(inner, serialized, options.options)
        c_api_util.ScopedTFImportGraphDefResults(results)  # which frees them
    finally:
        pywrap_tf_session.TF_DeleteBuffer(serialized)
