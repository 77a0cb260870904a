"""What is measured of a case: warm-up, windows, bytes, traces and links, and its export.

Counters and timestamps of workers come in, figures of a repeat go out.
"""
