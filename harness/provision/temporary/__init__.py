"""The temporary folder of a run: whose it is, and what is removed when its owner is gone."""
