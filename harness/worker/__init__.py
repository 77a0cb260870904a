"""What runs on the side of a worker: its actor, its zygote and its processes."""
