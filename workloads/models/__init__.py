"""The shipped models, and models of Keras by name.

In come checked parameters (`workloads.table`), out go a training step and the examples that it learns from.
"""
