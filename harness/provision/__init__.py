"""Providers of workers, and the removal of everything that runs leave behind.

`protocols` says what every provider offers; `local`, `docker` and `cluster` each offer it, on the Ray
actors and process sets of `ray`. In comes the shape of a cluster; out come fresh processes that take jobs,
or a typed failure.
"""
