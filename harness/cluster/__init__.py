"""What an experiment may ask of a cluster: providers and devices, limits of links, how to reach one.

Experiments are read and checked against it, and provisioning brings up what was asked; it starts nothing.
"""
