"""Contents of the folders of repeats that a report shows: steps, plans, logs and traces, within bounds."""
