"""From what a trace tells to a `TrainGraph`: forward and update told apart, boundaries, state, results.

A graph with marks comes in; out comes the captured step as passes see it, or the line that it cannot be
captured for.
"""
