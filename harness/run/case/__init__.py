"""One case on fresh processes: made ready, checked, timed window by window, looked at last.

In come a cluster and a prepared case; out goes what running it once has shown.
"""
