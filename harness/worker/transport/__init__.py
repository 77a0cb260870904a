"""Transport between workers outside TensorFlow: a ring, and its interface to a session."""
