"""Jobs of processes that run TensorFlow's own strategies, in place of those with a session."""
