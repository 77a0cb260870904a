"""Rules by operation for the parts of a variable that is cut."""
