"""Templates and style sheet of the HTML report."""
