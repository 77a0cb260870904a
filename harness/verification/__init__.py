"""Verification: what a strategy must compute, what it computed, and whether both are the same.

Numbers, verdicts and the driver's requests are here, without TensorFlow; `worker` computes the numbers.
"""
