"""Sums over workers that do not go through TensorFlow: a ring, and the session's end of it."""
