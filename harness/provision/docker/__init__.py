"""The `docker` provider: a container for each worker, networks of their own, links of a limited rate.

It drives the engine, watches its events, and removes what runs leave with it.
"""
