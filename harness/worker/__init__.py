"""What runs on the side of a worker.

`process` is an actor, its zygote and the processes forked from it; `jobs` is what the driver has these do,
with `session`, `transport` and `counters`; `verify` compares strategies with the reference, all workers in
one process.
"""
