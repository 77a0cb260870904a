"""Capture: the user's single-device step runs once, traced, with gradients and updates marked.

A step and the structure of its batch come in; a `TrainGraph` with initial values goes out. It replaces
functions of TensorFlow and Keras while it traces, and nothing outlives the trace.
"""
