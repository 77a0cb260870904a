"""All that runs on a worker: processes, jobs, sessions, transport and counters.

`process` is an actor, its zygote and the processes forked from it; `jobs` are what these do for the driver,
with `session`, `transport` and `counters`.
"""
