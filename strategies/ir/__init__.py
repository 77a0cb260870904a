"""The graph that passes rewrite, as plain values: nodes, functions, and what the parts of a step mean.

`assembly` makes a `TrainGraph` of a trace; `partitioning`, `replicas` and `control_flow` answer what passes
ask of it. Nothing here imports TensorFlow.
"""
