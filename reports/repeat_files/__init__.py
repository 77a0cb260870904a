"""Files of repeats in a report, within limits: steps, plans, logs and traces."""
