"""A run as it goes on: clusters, repeats, cases on their workers, and what a person sees of it.

In come cases and providers; out go records, one for each repeat, whatever happened to it.
"""
