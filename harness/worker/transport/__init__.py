"""What workers send each other outside of TensorFlow: a ring, and the session's end of it."""
