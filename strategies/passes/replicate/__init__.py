"""Copies of a step for replicas and micro-batches of one task, and how they come together again."""
