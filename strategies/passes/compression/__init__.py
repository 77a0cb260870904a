"""Compressed gradients between tasks, and the state of compressors."""
