"""Trend page of a history: what a night says, charts of its series by night, and a table of all of them."""
