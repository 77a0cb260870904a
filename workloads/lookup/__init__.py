"""Workloads by reference: shipped ones by name with checked parameters, a user's by the path of a file."""
