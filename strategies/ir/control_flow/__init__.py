"""Loops and branches as far as they bear on where nodes may run, and when."""
