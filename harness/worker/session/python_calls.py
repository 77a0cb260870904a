"""Calls of Python in a graph, bound to functions of this process."""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf


class PythonCalls:
    """Functions that graphs of this process may call, as long as this object lives.

    TensorFlow finds a function by a token that it gives out itself, and forgets it with the graph in which
    the token was given.

    Args:
        functions: what the graph calls each → the function.
    """

    def __init__(self, functions: Mapping[str, Callable[..., Any]]) -> None:
        self._graph = tf.Graph()
        with self._graph.as_default():
            self._tokens = {
                name: tf.numpy_function(function, [], []).get_attr("token")
                for name, function in functions.items()
            }

    def bind(self, graph_def: tf.compat.v1.GraphDef) -> dict[str, str]:
        """Put this process's tokens in the place of names; calls of other names stay as they are.

        Returns:
            node that calls → name of the function.
        """
        bound = {}
        for node in graph_def.node:
            name = node.attr["token"].s.decode() if node.op == "PyFunc" else ""
            if name in self._tokens:
                node.attr["token"].s = self._tokens[name]
                bound[node.name] = name
        return bound
