"""Transport between workers outside of TensorFlow: a ring, and the session's end of it."""
