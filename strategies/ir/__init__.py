"""The graph that passes rewrite, as plain values: nodes, functions, and the parts of a training step."""
