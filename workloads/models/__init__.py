"""The shipped models, one short file each, and models of Keras by name.

In come checked parameters (`workloads.lookup`), out go a training step and the examples that it learns from.
"""
