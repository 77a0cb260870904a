"""Records of runs: folders with a line for each repeat, documents and checksums.

Repeats are appended as frozen records; `stored_run` reads them, even during the run. Reports read nothing
else.
"""
