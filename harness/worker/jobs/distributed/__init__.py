"""Jobs for TensorFlow's own strategies as baselines, and for replicas that compile our graphs."""
