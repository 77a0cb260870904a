"""TensorFlow's own distribution strategies as baselines with our steps and batches, and its devices."""
