"""Timed loop of a worker: prepared callable, batches, injected faults, one or two timestamps per step."""

import contextlib
import gc
import itertools
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ParamSpec, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from strategies.plan.faults import Fault

Batch: TypeAlias = Sequence[npt.NDArray[np.generic]]
Fed = TypeVar("Fed")
Losses: TypeAlias = Sequence[npt.NDArray[np.generic] | float]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimes:
    """Times and losses of consecutive steps.

    Attributes:
        start_s, end_s: [n_steps], monotonic; a step starts at the end of the one before.
        losses: [n_steps, n_losses], one for each local shard.
        input_s: [n_steps], seconds until each step had its batch; None if batches were staged.
    """

    start_s: npt.NDArray[np.float64]
    end_s: npt.NDArray[np.float64]
    losses: npt.NDArray[np.float64]
    input_s: npt.NDArray[np.float64] | None = None


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Context without garbage collection, after a full one.

    Existing objects are excluded from later collections, which would scan all of TensorFlow between windows.
    """
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def in_turn(feeds: Sequence[Batch], first: int) -> Iterator[Batch]:
    """Endless iterator over staged batches in turn, starting with that of step `first`."""
    return itertools.islice(itertools.cycle(feeds), first % len(feeds), None)


def run_loops(
    steps: Callable[[Sequence[Batch]], npt.NDArray[np.generic]],
    batches: Iterator[Batch],
    *,
    n_steps: int,
    n_losses: int,
    steps_per_run: int,
    made_meanwhile: bool,
) -> StepTimes:
    """Run several steps per run, without garbage collection; steps of a run share its time equally.

    Args:
        steps: runs a step on each of some batches; returns losses, [n_steps, n_losses].
        batches: endless iterator.
        steps_per_run: largest number of steps in one run.
        made_meanwhile: True if batches are produced during the steps, and waited for.
    """
    stamps = np.empty(n_steps + 1, np.float64)
    input_s = np.empty(n_steps, np.float64)
    losses = np.empty((n_steps, n_losses), np.float64)
    clock = time.monotonic
    with no_garbage_collection():
        stamps[0] = clock()
        for first in range(0, n_steps, steps_per_run):
            stop = min(first + steps_per_run, n_steps)
            staged = list(itertools.islice(batches, stop - first))
            input_s[first:stop] = (clock() - stamps[first]) / (stop - first)
            losses[first:stop] = steps(staged)
            stamps[first + 1 : stop + 1] = np.linspace(stamps[first], clock(), stop - first + 1)[1:]
    return StepTimes(
        start_s=stamps[:-1], end_s=stamps[1:], losses=losses, input_s=input_s if made_meanwhile else None
    )


def runs_of(batches: Iterator[Batch], steps_per_run: int) -> Iterator[list[Batch]]:
    """Endless iterator over groups of batches for one run each."""
    while True:
        yield list(itertools.islice(batches, steps_per_run))


def seconds_unobserved(
    step: Callable[[Fed], object], batches: Iterator[Fed], *, n_steps: int, n_lead: int
) -> float:
    """Mean seconds per step with two clock readings in all, keeping no losses.

    Args:
        step: see `run_steps`.
        batches: endless iterator.
        n_lead: untimed steps before the timed ones.
    """
    with no_garbage_collection():
        for _, batch in zip(range(n_lead), batches, strict=False):
            step(batch)
        start_s = time.monotonic()
        for _, batch in zip(range(n_steps), batches, strict=False):
            step(batch)
        return (time.monotonic() - start_s) / n_steps


def run_steps(
    step: Callable[[Batch], Losses],
    batches: Iterator[Batch],
    *,
    n_steps: int,
    n_losses: int,
    made_meanwhile: bool,
) -> StepTimes:
    """Run steps back to back that each take their batch first, without garbage collection.

    Args:
        step: runs one step on the arrays of one batch; returns its `n_losses` losses.
        batches: endless iterator.
        made_meanwhile: True if batches are produced during the steps, and waited for.
    """
    stamps = np.empty(n_steps + 1, np.float64)
    has_batch_s = np.empty(n_steps, np.float64)
    losses = np.empty((n_steps, n_losses), np.float64)
    clock = time.monotonic
    with no_garbage_collection():
        stamps[0] = clock()
        for index in range(n_steps):
            batch = next(batches)
            has_batch_s[index] = clock()
            losses[index] = step(batch)
            stamps[index + 1] = clock()
    start_s = stamps[:-1]
    input_s = has_batch_s - start_s if made_meanwhile else None
    return StepTimes(start_s=start_s, end_s=stamps[1:], losses=losses, input_s=input_s)


P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True, kw_only=True)
class ProcessFaults:
    """Faults that act while a worker makes its steps.

    Attributes:
        passes: True if others' updates have overtaken the next step; then no fault acts.
        n_made: number of steps so far.
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
                _apply_fault(fault)
            self.waited_s = sum(fault.delay_ms for fault in acting) / 1000
            self.n_made += 1
            return step(*args, **kwargs)

        return faulty


def _acts(fault: Fault, step: int) -> bool:
    return fault.from_step <= step and (fault.to_step is None or step < fault.to_step)


def _apply_fault(fault: Fault) -> None:
    if fault.kind == "dead":
        os.kill(os.getpid(), signal.SIGKILL)
    # The fault: this worker is slow.
    time.sleep(fault.delay_ms / 1000)
