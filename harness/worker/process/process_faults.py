"""Faults of a worker's process: it waits before its steps, or is killed at one."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from strategies.plan.faults import Fault

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class ProcessFaults:
    """What befalls a worker as it makes its steps.

    Attributes:
        faults: of this worker, those of its process.
        passes: whether the next step is over before it is made, by what others did: nothing befalls it then.
        n_made: steps so far.
    """

    faults: Sequence[Fault] = ()
    passes: Callable[[], bool] = lambda: False
    n_made: int = 0

    def around(self, step: Callable[P, T]) -> Callable[P, T]:
        """A step in which they act."""
        if not self.faults:
            return step

        def faulty(*args: P.args, **kwargs: P.kwargs) -> T:
            for fault in () if self.passes() else self.faults:
                if fault.from_step <= self.n_made and (fault.to_step is None or self.n_made < fault.to_step):
                    _befall(fault)
            self.n_made += 1
            return step(*args, **kwargs)

        return faulty


def _befall(fault: Fault) -> None:
    if fault.kind == "dead":
        os.kill(os.getpid(), signal.SIGKILL)
    # The fault itself: this worker is slow.
    time.sleep(fault.delay_ms / 1000)
