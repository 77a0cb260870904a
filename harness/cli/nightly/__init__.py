"""What `nightly` does in its several ways: nights, what they say, the search for a commit."""
