"""Jobs that worker processes do for the driver; each takes the state of its process first."""
