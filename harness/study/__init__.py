"""One strategy for one workload outside of a run: what `verify`, `plan` and `transform` look at.

A target is captured and planned in a process of its own, which answers with values for the command line.
"""
