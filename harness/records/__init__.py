"""Records of runs: folders with a line for each repeat, documents and checksums.

Repeats come in as frozen records and are appended; `stored_run` reads them back, also during the run.
Reports read nothing else.
"""
