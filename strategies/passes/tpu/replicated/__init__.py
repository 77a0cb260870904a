"""The step as one computation that all cores run, and what cores cannot run."""
