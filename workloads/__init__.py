"""Models and data to benchmark: what a workload is, the shipped ones, and a user's own by path.

Importing this package never imports TensorFlow; a workload imports it when its step or dataset is requested.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from workloads.protocol import TrainStep, Workload, WorkloadError

__all__ = ["TrainStep", "Workload", "WorkloadError"]

_HOMES = {
    "TrainStep": "workloads.protocol",
    "Workload": "workloads.protocol",
    "WorkloadError": "workloads.protocol",
}


def __getattr__(name: str) -> object:
    """Import an exported name when it is first used."""
    if name not in _HOMES:
        message = f"module 'workloads' has no attribute {name!r}; it exports {', '.join(__all__)}"
        raise AttributeError(message)
    return getattr(import_module(_HOMES[name]), name)
