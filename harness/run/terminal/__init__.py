"""What a person at a terminal is told of a run: a line for each ended repeat, and what goes on now."""
