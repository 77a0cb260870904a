"""Vectors of several workers as rows: their order, their distances, chunk by chunk of coordinates."""
