"""Rows of a report, as plain frozen values: built by `compare`, turned into a medium by the renderers."""
