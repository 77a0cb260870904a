"""The step of a workload as its author wrote it, run as plain TensorFlow beside the captured one."""
