"""Ready-made experiment files, found by name."""
