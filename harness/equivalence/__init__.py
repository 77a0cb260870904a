"""Whether a strategy computes what one device computes: errors, noise floors, tolerances and verdicts.

In come values of variables and losses as arrays, from the reference and from a strategy; out come verdicts
for each variable and for all. No TensorFlow: `harness.worker.verify` makes the values.
"""
