"""Models and data to benchmark: what a workload is, the shipped ones, and a user's own by path.

Importing this package never imports TensorFlow; a workload imports it when its step or dataset is requested.
"""

from workloads.protocol import TrainStep, Workload, WorkloadError

__all__ = ["TrainStep", "Workload", "WorkloadError"]
