"""Workers as Ray actors: the common part of all providers, given a running Ray instance.

Input: hosts for actors. Output: sets of new processes, and their answers or failures.
"""
