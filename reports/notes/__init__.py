"""Notes beside a comparison: what to doubt about its figures, and how they were measured."""
