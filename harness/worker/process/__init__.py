"""Processes of workers: an actor that forks them from a fork server, and how jobs and answers cross.

A job comes in as the name of a function with arguments; its value or a typed failure goes back.
"""
