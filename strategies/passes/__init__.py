"""Graph to graph, one idea each: `pass_order` says which carry out a plan, `run` applies them.

A captured step and a topology come in, one worker's share of the transformed step goes out.
"""
