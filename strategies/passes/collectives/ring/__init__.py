"""Synchronisation by the workers' own ring: vectors that a step gives to it and takes from it."""
