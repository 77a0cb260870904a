"""What records of different cases have in common: circumstances, rounds taken in turn, and their ratios."""
