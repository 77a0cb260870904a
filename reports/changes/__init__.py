"""Changes between two runs, case by case."""
