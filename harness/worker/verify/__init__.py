"""Strategies against the reference, with all workers of a topology in one process.

A captured step, a plan and batches go in; states, losses and their noise come out, for
`harness.equivalence` to judge.
"""
