"""Assembly of a `TrainGraph` from a trace: forward, update, boundaries, state, results."""
