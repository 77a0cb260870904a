"""Curves beside the rows: over sizes, links, steps and rounds; trade-offs; what each worker takes."""
