"""Code that runs on workers: processes, jobs, sessions, transport and counters.

`process` has the actor, its fork server and the forked processes. These run `jobs` for the driver, with
`session`, `transport` and `counters`.
"""
