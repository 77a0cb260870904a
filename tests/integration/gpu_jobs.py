"""Jobs that the tests of GPUs run in worker processes."""

import os

from harness.worker.process.job import JobState

MOST_MIB = 4096


def rounding(state: JobState) -> dict[str, float]:
    """Errors of a product and a convolution of float32 against float64, ÷ the largest value."""
    import numpy as np
    import tensorflow as tf

    rng = np.random.default_rng(0)
    left, right = rng.normal(size=(2, 256, 256))
    images, filters = rng.normal(size=(8, 16, 16, 32)), rng.normal(size=(3, 3, 32, 32))
    errors = {}
    for name, operation, operands in (
        ("product", tf.linalg.matmul, (left, right)),
        ("convolution", lambda x, f: tf.nn.conv2d(x, f, 1, "SAME"), (images, filters)),
    ):
        narrow, wide = (
            operation(*(tf.constant(x, dtype) for x in operands)) for dtype in ("float32", "float64")
        )
        errors[name] = float(np.abs(narrow.numpy() - wide.numpy()).max() / np.abs(wide.numpy()).max())
    return errors


def multiply(state: JobState) -> dict[str, object]:
    """Use a GPU; tell which this process sees, and what it computed on."""
    import tensorflow as tf

    product = tf.linalg.matmul(tf.ones([64, 64]), tf.ones([64, 64]))
    return {
        "visible": os.environ.get("CUDA_VISIBLE_DEVICES"),
        "n_gpus": len(tf.config.list_physical_devices("GPU")),
        "device": tf.DeviceSpec.from_string(product.device).device_type,
    }
