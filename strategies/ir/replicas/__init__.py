"""What several copies of a step must not share, or must make once: updates, random numbers, what is shown."""
