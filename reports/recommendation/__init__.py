"""Words of a report: which strategy to take, with which certainty, and what to doubt about its figures."""
