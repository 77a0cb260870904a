"""Strategies, one module per family: from a captured step and a topology to plan nodes."""
