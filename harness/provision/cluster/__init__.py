"""The `cluster` provider: workers on the nodes of an existing Ray cluster.

It finds room, also on TPU slices, places actors, and copies files to nodes without the driver's file system.
"""
