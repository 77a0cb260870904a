"""Verification: comparison of a strategy's results with those of a single device.

Numbers, verdicts and the driver's requests are here, without TensorFlow; `worker` computes the numbers.
"""
