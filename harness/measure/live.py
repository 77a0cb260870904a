"""Progress of a run for observers, reported between windows, when no step is in flight."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from harness.errors import first_line
from harness.records.record import Record
from harness.records.steps_file import Steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A window that has just ended.

    Attributes:
        case: its id. workload, strategy: with their parameters.
        precision, xla, input: see `harness.records.circumstances.Method`.
        n_rounds: done of the repeat, this window's included; of `n_all_rounds`.
        examples_per_s: of its median step.
        n_steps: all that were made in it. payload_bytes: that the plan says were sent in them.
        resident_bytes: memory of the worker that has most; None where it is not known.
        at_s: seconds since 1970.
    """

    experiment: str
    case: str
    workload: str
    strategy: str
    provider: str
    device: str
    precision: str
    xla: bool
    input: str
    n_rounds: int
    n_all_rounds: int
    examples_per_s: float
    n_steps: int
    payload_bytes: float
    resident_bytes: int | None
    at_s: float = field(default_factory=time.time)


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Rest of a run; `seconds` is None until the length of a repeat is known."""

    n_repeats: int
    seconds: float | None


class Onlooker(Protocol):
    """Observer of a run's progress; its work counts as time between windows."""

    def window(self, moment: Moment) -> None:
        """A window has ended."""

    def ended(self, record: Record, steps: Steps | None, left: Left) -> None:
        """A repeat has ended; `steps` is None unless it was measured."""


class Nobody:
    """Observer that ignores everything."""

    def window(self, moment: Moment) -> None:
        """Nothing."""

    def ended(self, record: Record, steps: Steps | None, left: Left) -> None:
        """Nothing."""


@dataclass(frozen=True, slots=True)
class Harmless:
    """Observer that notes errors of another one, so that none ends a run."""

    onlooker: Onlooker
    note: Callable[[str], None]

    def window(self, moment: Moment) -> None:
        with self._noting():
            self.onlooker.window(moment)

    def ended(self, record: Record, steps: Steps | None, left: Left) -> None:
        with self._noting():
            self.onlooker.ended(record, steps, left)

    @contextmanager
    def _noting(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - whatever it is, it is not the run's
            self.note(f"metrics: {type(error).__name__}: {first_line(str(error))}")
