"""Smaller forms of gradients as pure TensorFlow functions with explicit state."""
