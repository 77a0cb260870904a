"""What `nightly` does in its several ways: a night, its answer, its page for Prometheus."""
