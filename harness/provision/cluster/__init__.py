"""The `cluster` provider: workers on the nodes of a Ray cluster that is there already.

It finds room, on TPU slices too, places actors, and carries files to nodes that do not see the driver's.
"""
