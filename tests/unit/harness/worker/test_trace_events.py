"""Events of a step on GPUs, from what TensorFlow writes of it."""

import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")
from google.protobuf import text_format

from harness.worker.tracing import trace_events

HOST_CPU = "/job:worker/replica:0/task:0/device:CPU:0"
HOST_GPU = "/job:worker/replica:0/task:0/device:GPU:0"


def run_of(*rows):
    """What TensorFlow tells of a run: devices, and the node statistics of each as text."""
    metadata = tf.compat.v1.RunMetadata()
    for device, *nodes in rows:
        stats = metadata.step_stats.dev_stats.add(device=device)
        for node in nodes:
            text_format.Parse(node, stats.node_stats.add())
    return metadata


def test_a_step_ran_on_the_devices_of_its_operations_and_kernels():
    rows = ("stream:13", "stream:14<MemcpyH2D>", "stream:all", "memcpy", "sync")
    node = "node_name: 'a'"
    run = run_of((HOST_CPU, node), (HOST_GPU, node), *((f"/device:GPU:0/{row}", node) for row in rows))
    beside = run_of(("/device:GPU:1/stream:all", node), ("/device:GPU:2/stream:9",))
    assert trace_events.devices([run, beside]) == ("/device:GPU:0", "/device:GPU:1", HOST_CPU, HOST_GPU)
    assert trace_events.devices([]) == ()
