"""References and strategies as a worker's process runs them, all workers of a topology in one process."""
