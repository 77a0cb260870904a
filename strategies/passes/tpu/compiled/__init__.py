"""Compiled computations in a graph: compile nodes and executes, what their metadata and handles tell."""
