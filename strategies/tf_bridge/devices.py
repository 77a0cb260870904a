"""Devices of graphs and of this process, as TensorFlow knows them beside its servers."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.eager.context import Context


def on_own_devices(graph_def: tf.compat.v1.GraphDef) -> None:
    """Name devices as a session without servers knows them, by type and number alone; in place."""
    bodies = (function.node_def for function in graph_def.library.function)
    for node in itertools.chain(graph_def.node, *bodies):
        if node.device:
            device = tf.DeviceSpec.from_string(node.device)
            node.device = device.replace(job=None, replica=None, task=None).to_string()


def context_of_all_gpus(logical: Mapping[Any, Sequence[tf.config.LogicalDeviceConfiguration]]) -> Context:
    """Make a context of eager operations that has all GPUs of this process, beside the usual one.

    Each GPU has one allocator in a process, which sessions, servers and contexts share.

    Args:
        logical: devices of each physical GPU that is more than one.
    Source:
        GPUProcessState::GetGPUAllocator in TensorFlow's gpu_process_state.cc; TFE_GetMemoryInfo.
    """
    context = Context()
    for gpu, devices in logical.items():
        context.set_logical_device_configuration(gpu, devices)
    return context
