"""Computations replicated over TPU cores: variables, the step, host loops, resharding, and their emulation.

A captured step comes in. What goes out is a graph for TPUs, or the same lowered to devices that are here.
"""
