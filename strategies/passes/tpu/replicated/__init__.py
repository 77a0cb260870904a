"""The step as one computation that all cores run, what they cannot run, and what a replica alone compiles."""
