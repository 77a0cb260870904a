"""Background threads of a worker's steps: updates, late steps, and work done once per step."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from harness.worker.variable_parts import Array

_END_S = 10.0
_SETTLE_S = 60.0


class UpdateLoop:
    """Makes updates in a separate thread until its session ends.

    Attributes:
        updates_by_size: number of contributions → number of updates with so many.
    Args:
        update: waits for contributions and makes an update; returns their number.
        abandon: closes the session, which ends all steps that wait for updates.
    """

    def __init__(self, update: Callable[[], Sequence[Array]], abandon: Callable[[], None]) -> None:
        self.updates_by_size: Counter[int] = Counter()
        self._update = update
        self._abandon = abandon
        self._failure: Exception | None = None
        self._ending = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="updates", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def check(self) -> None:
        """Raise the failure that ended the loop, if any."""
        if self._failure is not None:
            raise self._failure

    def wait_for(self, n_contributions: int) -> None:
        """Wait until updates have used so many contributions.

        Raises:
            Exception: the failure of an update.
            TimeoutError: updates have used fewer after the time limit.
        """
        with self._changed:
            settled = self._changed.wait_for(
                lambda: self._failure is not None or self._n_taken() >= n_contributions, _SETTLE_S
            )
        self.check()
        if not settled:
            raise TimeoutError(
                f"updates took {self._n_taken()} of {n_contributions} contributions within {_SETTLE_S:g} s"
            )

    def note(self) -> str:
        counts = sorted(self.updates_by_size.copy().items())
        sizes = ", ".join(f"{n_updates} with {size}" for size, n_updates in counts)
        return f"contributions per update: {sizes or 'no updates'}"

    def end(self) -> None:
        """Mark the session as about to close, so that its end is not a failure."""
        self._ending = True

    def join(self) -> None:
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_END_S)

    def _n_taken(self) -> int:
        return sum(number * n_updates for number, n_updates in self.updates_by_size.copy().items())

    def _run(self) -> None:
        try:
            while not self._ending:
                (number,) = self._update()
                with self._changed:
                    self.updates_by_size[int(number)] += 1
                    self._changed.notify_all()
        except Exception as error:  # noqa: BLE001 - whatever it is, the next step raises it
            if not self._ending:
                with self._changed:
                    self._failure = error
                    self._changed.notify_all()
                self._abandon()


class Pace:
    """Counts a worker's steps by updates: it skips steps whose updates other workers have already made.

    A late worker continues with the newest update. Skipped steps pass at once, with the losses of its last
    step, so that all workers end a number of steps at the same update.

    Attributes:
        dropped: number of late contributions. passed: number of skipped steps.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self.passed = 0
        self._step = 0
        self._ahead = 0
        self._losses: Sequence[Array] = ()

    @property
    def is_ahead(self) -> bool:
        return self._ahead > 0

    def skipped(self) -> Sequence[Array] | None:
        """Losses of a step that is already over; None if it must be run."""
        if not self.is_ahead:
            return None
        self._ahead -= 1
        self.passed += 1
        return self._losses

    def note(self) -> str:
        return (
            f"contributions dropped as late: {self.dropped}, steps skipped: {self.passed}; rates count their "
            "examples too"
        )

    def record(self, losses: Sequence[Array], progress: Array) -> Sequence[Array]:
        """Record a step.

        Args:
            progress: the step reached, and 1 if its contribution came too late.
        """
        step, late = (int(value) for value in np.asarray(progress))
        self._ahead = step - self._step - 1
        self._step = step
        self.dropped += late
        self._losses = losses
        return losses


Values = TypeVar("Values", bound=Sequence[Array])


class BesideStep:
    """Runs a function in the background of each step, which waits for its results.

    Args:
        abandon: closes the session, which ends a step that waits in vain.
    """

    def __init__(self, run: Callable[[], object], abandon: Callable[[], None]) -> None:
        self.run = run
        self._abandon = abandon
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="beside")

    def during(self, step: Callable[[], Values]) -> Values:
        """Run a step.

        Raises:
            Exception: the failure of the step, or of the background function, which ends the session.
        """
        beside = self._thread.submit(self._once)
        try:
            values = step()
        except Exception:
            if beside.done():
                beside.result()
            raise
        beside.result()
        return values

    def end(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _once(self) -> None:
        try:
            self.run()
        except Exception:
            self._abandon()
            raise
