"""A host whose driver shows a GPU that TensorFlow cannot use, in every process that has this on its path.

With SEEN set, TensorFlow lists the GPU and makes no device of it, and sessions say that they have one.
"""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from typing import Any

from changed_modules import ChangedModules


def with_gpu(accelerators: Any) -> None:
    gpus = (accelerators.Gpu(uuid="GPU-0", name="NVIDIA T"),)
    accelerators.host_devices = lambda: accelerators.HostDevices(gpus=gpus)
    accelerators.lack_of_tensorflow = lambda device: None


def without_library(tensorflow: Any) -> None:
    if "LD_DEBUG" in os.environ:
        with suppress(OSError):
            ctypes.CDLL("libcusolver.so.99")
    if "SEEN" in os.environ:
        listed = tensorflow.config.list_physical_devices
        tensorflow.config.list_physical_devices = lambda kind=None: ["GPU"] if kind == "GPU" else listed(kind)
        tensorflow.config.get_logical_device_configuration = lambda device: None


def with_device(settings: Any) -> None:
    if "SEEN" in os.environ:
        settings.listed_devices = lambda *_: ["/device:GPU:0"]


ChangedModules(
    {
        "harness.provision.accelerators": with_gpu,
        "harness.worker.session.tensorflow_settings": with_device,
        "tensorflow": without_library,
    }
).install()
