"""Jobs of processes under TensorFlow's own strategies: of rivals, and of replicas that compile our graphs."""
