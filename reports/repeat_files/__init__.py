"""What a report takes from the folders of repeats: steps, plans, passes, logs and traces, within bounds."""
