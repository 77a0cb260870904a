"""Updates of a step with fewer operations."""
