"""Gradients in a smaller form between tasks, and what compressors remember."""
