"""What Prometheus is told of a run: metrics served while it goes on, or pushed from stored records."""
