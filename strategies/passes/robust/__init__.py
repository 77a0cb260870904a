"""Rules over the gradients of all workers, on a server or on every worker, and faults put into gradients."""
