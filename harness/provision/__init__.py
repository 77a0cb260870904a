"""Providers of workers, and the removal of everything that runs leave behind.

`protocols` defines the interface of a provider; `local`, `docker` and `cluster` implement it, with the Ray
actors and process sets of `ray`. Input: the shape of a cluster. Output: new processes that run jobs, or a
typed failure.
"""
