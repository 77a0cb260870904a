"""Graphs as text that people read, diff and write: a graph comes in and its text goes out, and back."""
