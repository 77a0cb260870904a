"""The `local` provider: workers on this machine, under a Ray instance of the run's own.

Where no provider is asked for, child processes serve jobs without Ray.
"""
