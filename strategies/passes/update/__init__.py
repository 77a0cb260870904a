"""Updates of a step in fewer operations."""
