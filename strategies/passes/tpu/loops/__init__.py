"""Loops over steps around a computation, of the host or of the cores."""
