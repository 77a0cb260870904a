"""Strategies: one module per family, each from a captured step and a topology to plan nodes."""
