"""Exchanges of a plan's step: messages between tasks, with their bytes and what a simulation needs."""
