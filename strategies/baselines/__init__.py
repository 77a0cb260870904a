"""TensorFlow's own distribution strategies: as rivals with our steps and batches, and to give out devices."""
