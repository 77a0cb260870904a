"""The tables of a report: rows come in, captions and text cells go out, for every medium the same."""
