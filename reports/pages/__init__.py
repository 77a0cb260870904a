"""Media: HTML, Markdown, CSV, JSON, JUnit XML, the terminal; each escapes text in its own way."""
