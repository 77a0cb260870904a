"""Media: the HTML page, Markdown, CSV, JSON and JUnit XML, the terminal; each escapes text in its own way."""
