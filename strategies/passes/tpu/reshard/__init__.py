"""Resharding around host loops: which variables can lie in parts meanwhile, and what brings them there."""
