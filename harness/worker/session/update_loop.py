"""Threads beside a worker's steps: updates, late steps, and work done once per step."""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np

from harness.equivalence.yardstick import Array

_END_S = 10.0
_SETTLE_S = 60.0


class UpdateLoop:
    """Makes one update after the other in a thread of its own, until the session under it ends.

    Attributes:
        taken: number of contributions in an update → how many updates had so many.
    Args:
        update: makes an update when there is something to update with; returns the number of contributions.
        abandon: ends the session, and so the waits of all steps for updates that will not come.
    """

    def __init__(self, update: Callable[[], Sequence[Array]], abandon: Callable[[], None]) -> None:
        self.taken: Counter[int] = Counter()
        self._update = update
        self._abandon = abandon
        self._failure: Exception | None = None
        self._ending = False
        self._made = threading.Condition()
        self._thread = threading.Thread(target=self._run, name="updates", daemon=True)

    def start(self) -> None:
        """Begin to wait for contributions."""
        self._thread.start()

    def check(self) -> None:
        """Raise what ended the loop, if anything did.

        Raises:
            Exception: the failure of an update.
        """
        if self._failure is not None:
            raise self._failure

    def wait_for(self, n_contributions: int) -> None:
        """Wait until updates have taken so many contributions.

        Raises:
            Exception: the failure of an update. TimeoutError: they took fewer.
        """
        with self._made:
            settled = self._made.wait_for(
                lambda: self._failure is not None or self._n_taken() >= n_contributions, _SETTLE_S
            )
        self.check()
        if not settled:
            raise TimeoutError(
                f"updates must take {n_contributions} contributions within {_SETTLE_S:g} s, "
                f"got {self._n_taken()}"
            )

    def note(self) -> str:
        """How many contributions updates took, in a sentence."""
        counts = sorted(self.taken.copy().items())
        times = ", ".join(f"{n_updates} took {number}" for number, n_updates in counts)
        return f"contributions in an update: of {sum(n for _, n in counts)} updates {times or 'none'}"

    def end(self) -> None:
        """Take the end of the session, which comes next, for no failure."""
        self._ending = True

    def join(self) -> None:
        """Wait for the thread of a session that has ended."""
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_END_S)

    def _n_taken(self) -> int:
        return sum(number * n_updates for number, n_updates in self.taken.copy().items())

    def _run(self) -> None:
        try:
            while not self._ending:
                (number,) = self._update()
                with self._made:
                    self.taken[int(number)] += 1
                    self._made.notify_all()
        except Exception as error:  # noqa: BLE001 - whatever it is, the next step raises it
            if not self._ending:
                with self._made:
                    self._failure = error
                    self._made.notify_all()
                self._abandon()


class Pace:
    """Counts a worker's steps as updates go: those that others made meanwhile are skipped.

    A worker that comes late to an update goes on with the newest. The steps in between pass at once, with the
    losses of the last that it made, so that all workers end a number of steps at the same update.

    Attributes:
        dropped: contributions that came too late. passed: steps that were skipped.
    """

    def __init__(self) -> None:
        self.dropped = 0
        self.passed = 0
        self._step = 0
        self._ahead = 0
        self._losses: Sequence[Array] = ()

    @property
    def is_ahead(self) -> bool:
        """Whether the next step is over already."""
        return self._ahead > 0

    def skipped(self) -> Sequence[Array] | None:
        """The losses of a step that is over already, None if it must be made."""
        if not self.is_ahead:
            return None
        self._ahead -= 1
        self.passed += 1
        return self._losses

    def note(self) -> str:
        """What the worker had no part in, in a sentence."""
        return (
            f"{self.dropped} contributions came too late and {self.passed} steps passed without it; rates "
            "count their examples too"
        )

    def made(self, losses: Sequence[Array], progress: Array) -> Sequence[Array]:
        """Note what a step came to.

        Args:
            progress: the step come to, and 1 if the contribution came too late.
        """
        step, late = (int(value) for value in np.asarray(progress))
        self._ahead = step - self._step - 1
        self._step = step
        self.dropped += late
        self._losses = losses
        return losses


Values = TypeVar("Values", bound=Sequence[Array])


class BesideStep:
    """Runs something once for each step, at the same time as the step, which waits for what it makes.

    Attributes:
        run: what runs beside a step.
    Args:
        abandon: ends the session, and so a step that waits for what will not come.
    """

    def __init__(self, run: Callable[[], object], abandon: Callable[[], None]) -> None:
        self.run = run
        self._abandon = abandon
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="beside")

    def during(self, step: Callable[[], Values]) -> Values:
        """Make a step.

        Raises:
            Exception: the failure of the step, or of what runs beside it, which ends the session.
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
        """End the thread of a session that has ended."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _once(self) -> None:
        try:
            self.run()
        except Exception:
            self._abandon()
            raise
