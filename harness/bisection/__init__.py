"""Which commit has changed a case: a search over commits, and an experiment run by the code of each."""
