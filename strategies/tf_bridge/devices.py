"""Devices of a graph that a session runs on devices of its own, where there is no job and no other task."""

import itertools

import tensorflow as tf


def on_own_devices(graph_def: tf.compat.v1.GraphDef) -> None:
    """Name devices as a session without servers knows them, by type and number alone; in place."""
    bodies = (function.node_def for function in graph_def.library.function)
    for node in itertools.chain(graph_def.node, *bodies):
        if node.device:
            device = tf.DeviceSpec.from_string(node.device)
            node.device = device.replace(job=None, replica=None, task=None).to_string()
