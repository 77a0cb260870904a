"""Counters of a worker: bytes of connections and interfaces, processor time, memory, GPUs."""
