"""Verification: what a strategy must compute, what it computed, and whether both are the same.

Numbers, verdicts and what a driver asks for stand here and need no TensorFlow; `worker` makes the numbers.
"""
