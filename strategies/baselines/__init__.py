"""TensorFlow's own distribution strategies, given the same step, variables and batches as ours."""
