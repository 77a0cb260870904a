"""Templates, style sheet and script of the HTML pages."""
