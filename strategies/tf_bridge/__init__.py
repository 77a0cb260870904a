"""Conversion between TensorFlow and the graph: types, float64, snippets, programs."""
