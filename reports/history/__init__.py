"""History of nightly runs: series of figures night by night, and what has changed in them."""
