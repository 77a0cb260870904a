"""The arithmetic of synchronisation as ordinary TensorFlow functions; passes splice them in."""
