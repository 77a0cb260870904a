"""A run as it goes on: clusters, repeats, cases on their workers, and what a person sees of it.

Input: cases and providers. Output: a record for each repeat, also if it fails.
"""
