"""Event files, in which TensorBoard shows graphs."""

from pathlib import Path

import tensorflow as tf

from strategies.ir.graph import Graph
from strategies.tf_bridge.graphdef import graphdef_from_graph


def write_event_file(folder: Path, graph: Graph) -> None:
    """Write a graph into a folder of its own, which TensorBoard shows as a run of that name.

    Raises:
        OSError: it cannot be written.
    """
    folder.mkdir(parents=True)
    try:
        writer = tf.summary.create_file_writer(str(folder))
        with writer.as_default():
            tf.summary.graph(graphdef_from_graph(graph))
        writer.close()
    except tf.errors.OpError as error:
        raise OSError(None, error.message) from error
