"""What the driver has worker processes do, each job with the state of its process first."""
