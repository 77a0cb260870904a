"""Worker processes: an actor that forks them from a fork server, and messages with jobs and answers.

Input: a job, as a function's name and arguments. Output: its result, or a typed failure.
"""
