"""Traced step of a worker: TensorFlow's events in, times by kind out."""
