"""Variables cut into parts: their reads, gradients, slots and updates."""
