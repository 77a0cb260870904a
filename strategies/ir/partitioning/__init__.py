"""Which nodes follow the parts of a variable that is cut, and what each becomes for a part."""
