"""Functions that nodes call: their bodies as nodes of a graph and back, and how TensorFlow runs them."""
