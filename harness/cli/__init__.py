"""The command line: reads what a person asks, calls the pipeline, prints the answer."""
