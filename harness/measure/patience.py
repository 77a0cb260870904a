"""How long to wait for steps: as long as the steps before them make believable, so that a hang ends soon."""

import statistics
from collections.abc import Sequence

# The first step of a process traces, optimises and allocates, and nothing is known of it before.
FIRST_STEP_S = 180.0
_UNKNOWN_STEP_S = 10.0
_CONSTANT_S = 30.0
_FACTOR = 5.0
_RECENT = 10


def patience_s(n_steps: int, known_s: Sequence[float]) -> float:
    """Seconds after which workers that make some steps are taken to hang.

    Args:
        known_s: times of the steps before, the slowest worker's; may be empty.
    """
    if not known_s:
        return FIRST_STEP_S + _UNKNOWN_STEP_S * (n_steps - 1)
    return _CONSTANT_S + _FACTOR * n_steps * statistics.median(known_s[-_RECENT:])
