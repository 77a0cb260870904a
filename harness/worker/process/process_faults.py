"""Injected faults of a worker's process: a delay before its steps, or a kill at one."""

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
    """Faults that act while a worker makes its steps.

    Attributes:
        passes: True if others' updates have overtaken the next step; then no fault acts.
        n_made: steps so far.
        waited_s: delay of the last step.
    """

    faults: Sequence[Fault] = ()
    passes: Callable[[], bool] = lambda: False
    n_made: int = 0
    waited_s: float = 0.0

    def around(self, step: Callable[P, T]) -> Callable[P, T]:
        """Wrap a step so that the faults act in it."""
        if not self.faults:
            return step

        def faulty(*args: P.args, **kwargs: P.kwargs) -> T:
            passes = self.passes()
            acting = [fault for fault in self.faults if not passes and _acts(fault, self.n_made)]
            for fault in acting:
                _befall(fault)
            self.waited_s = sum(fault.delay_ms for fault in acting) / 1000
            self.n_made += 1
            return step(*args, **kwargs)

        return faulty


def _acts(fault: Fault, step: int) -> bool:
    return fault.from_step <= step and (fault.to_step is None or step < fault.to_step)


def _befall(fault: Fault) -> None:
    if fault.kind == "dead":
        os.kill(os.getpid(), signal.SIGKILL)
    # The fault itself: this worker is slow.
    time.sleep(fault.delay_ms / 1000)
