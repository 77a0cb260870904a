"""Tuning of a strategy's knobs for one workload and its links: what is measured next, and what that decides.

Comes in: an experiment of one strategy, and records of its repeats. Goes out: repeats to make, and a plan.
"""
