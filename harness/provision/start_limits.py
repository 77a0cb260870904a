"""How long workers and their processes may take to start."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class StartLimits:
    """Limits of each start.

    Attributes:
        preload_s: until a worker has imported what its processes need, from when its host is there.
        fork_s: until it has forked one.
    """

    preload_s: float = 120.0
    fork_s: float = 30.0


USUAL_START = StartLimits()
