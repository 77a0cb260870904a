"""Jobs that worker processes run for the driver; their first argument is the state of the process."""
