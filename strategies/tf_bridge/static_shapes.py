"""Types and static shapes of a graph's tensors, as TensorFlow infers them."""

from collections.abc import Mapping

import tensorflow as tf

from strategies.ir.graph import DType, Graph, Shape, tensor
from strategies.tf_bridge.attrs import dtype_of
from strategies.tf_bridge.graphdef import serialize_graph
from strategies.tf_bridge.snippet import TensorSpec


def static_specs(graph: Graph) -> Mapping[str, TensorSpec]:
    """What is known of every tensor of a graph, by reference; the graph is imported for that."""
    bare = graph.with_nodes(node.changed(device="") if node.device else node for node in graph.nodes)
    with tf.Graph().as_default() as imported:
        definition = tf.compat.v1.GraphDef.FromString(serialize_graph(bare))
        tf.import_graph_def(definition, name="")
        return {
            tensor(operation.name, place): _spec(output)
            for operation in imported.get_operations()
            for place, output in enumerate(operation.outputs)
        }


def _spec(output: tf.Tensor) -> TensorSpec:
    dtype = dtype_of(output.dtype.as_datatype_enum) or DType("invalid")
    if output.shape.rank is None:
        return TensorSpec(dtype=dtype)
    dims = tuple(-1 if size is None else size for size in output.shape.as_list())
    return TensorSpec(dtype=dtype, shape=Shape(dims))
