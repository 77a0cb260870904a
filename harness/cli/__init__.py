"""The command line: reads what a person asks, calls the pipeline, prints the answer."""

from harness.cli.app import main

__all__ = ["main"]
