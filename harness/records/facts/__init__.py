"""Parts of a record, as frozen values: what was found, what it cost, and under what circumstances."""
