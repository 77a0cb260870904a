"""Capture: trace the user's single-device step once, with gradients and updates marked.

Input: a step and the structure of its batch. Output: a `TrainGraph` with initial values. While it traces it
replaces functions of TensorFlow and Keras, and restores all of them afterwards.
"""
