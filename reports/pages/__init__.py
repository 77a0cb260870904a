"""Media: HTML, Markdown, CSV, JSON, JUnit XML, pictures, the terminal; each escapes text in its own way."""
