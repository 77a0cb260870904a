"""History of nightly runs: series night by night, what has changed in them, and the trend page."""
