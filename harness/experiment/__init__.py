"""Experiments that a person asks for, with their references and cases, as frozen values.

They are read from YAML, command-line values and names of strategies and workloads, and become a spec with
its hash, and the cases in the order in which they run. Nothing is started, and no TensorFlow is imported.
"""
