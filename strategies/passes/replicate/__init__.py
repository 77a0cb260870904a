"""Copies of a step for the replicas and micro-batches of one task, and the sums of their results."""
