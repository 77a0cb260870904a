"""Jobs that the tests of GPUs run in worker processes."""

import os

from harness.worker.process.job import JobState

MOST_MIB = 4096


def multiply(state: JobState) -> dict[str, object]:
    """Use a GPU; tell which this process sees, and what it computed on."""
    import tensorflow as tf

    product = tf.linalg.matmul(tf.ones([64, 64]), tf.ones([64, 64]))
    return {
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "n_gpus": len(tf.config.list_physical_devices("GPU")),
        "device": tf.DeviceSpec.from_string(product.device).device_type,
    }
