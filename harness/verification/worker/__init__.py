"""References and strategies in a worker process, with all workers of a topology in one process."""
