"""Computations for cores on the devices that are here: programs, their collectives, real resharding."""
