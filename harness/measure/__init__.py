"""Warm-up, windows, the timed loop, what is collected of a case, and its export."""
