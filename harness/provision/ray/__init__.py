"""Workers that are Ray actors: what all providers share once a Ray instance is there.

In come hosts on which actors can be placed; out come sets of fresh processes and their answers or failures.
"""
