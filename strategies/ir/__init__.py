"""The graph that passes rewrite; nothing here imports TensorFlow."""
