"""Work done once beside each step, in its own thread."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from harness.equivalence.yardstick import Array

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
