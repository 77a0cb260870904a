"""TPU devices of this host: brought up and given back by TensorFlow, and what their replicas compile."""
