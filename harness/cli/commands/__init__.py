"""A module for each command: its options, its call of the pipeline, its answer in words."""
