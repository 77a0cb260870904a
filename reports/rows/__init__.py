"""Rows of a report as frozen values: built by `compare`, rendered by `reports.pages`."""
