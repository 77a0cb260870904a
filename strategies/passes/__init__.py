"""Graph rewrites, one idea each: `pass_order` chooses those that carry out a plan, `run` applies them.

Input: a captured step and a topology. Output: one worker's share of the transformed step.
"""
