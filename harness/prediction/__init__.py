"""Predicted step times, by simulation of a profile and costs of exchanges, and the search for good plans."""
