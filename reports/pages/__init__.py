"""Media: the HTML page, Markdown, CSV and JSON, the terminal; each escapes text in its own way."""
