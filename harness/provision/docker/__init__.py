"""The `docker` provider: a container for each worker, two networks per run, links with limited rates.

It drives the engine, watches its events, and removes containers and networks of dead runs.
"""
