"""Capture a training step, rewrite its graph for a strategy, and say what each strategy costs."""
