"""Experiments, with their references and cases, as frozen values.

They are read from YAML, command-line values and names of strategies and workloads. Nothing is started, and
no TensorFlow is imported.
"""
