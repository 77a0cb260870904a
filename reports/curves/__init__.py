"""Curves beside the rows: over sizes, links, steps and rounds; trade-offs; shares of workers."""
