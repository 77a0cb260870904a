"""Changes between two runs: the cases of one against the same cases of the other."""
