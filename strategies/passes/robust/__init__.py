"""Robust rules over all workers' gradients, on a server or on every worker, and injected faults."""
