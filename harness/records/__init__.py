"""Records of runs: folders with a line for each repeat, documents and checksums.

Repeats come in as frozen records and are appended; `store` gives them back, also while the run goes on.
Reports read nothing else.
"""
