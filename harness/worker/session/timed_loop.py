"""The timed loop inside a worker: a prepared callable, its batches, and a timestamp or two for each step."""

import contextlib
import gc
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

Batch: TypeAlias = Sequence[npt.NDArray[np.generic]]
Fed = TypeVar("Fed")
Losses: TypeAlias = Sequence[npt.NDArray[np.generic] | float]


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimes:
    """What the loop saw of some consecutive steps.

    Attributes:
        start_s, end_s: [n_steps], monotonic; a step starts when the one before it ends.
        losses: [n_steps, n_losses], one for each local shard.
        input_s: [n_steps], seconds of each step until it had its batch; None where batches lay ready.
    """

    start_s: npt.NDArray[np.float64]
    end_s: npt.NDArray[np.float64]
    losses: npt.NDArray[np.float64]
    input_s: npt.NDArray[np.float64] | None = None


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect garbage before the context, and none in it.

    What is there by then is left out of later collections, which would look at all of TensorFlow between any
    two windows.
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
    """Batches that lie ready, from that of step `first` on, and again from the start."""
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
    """Run steps several at a time, without collecting garbage; steps of a run get equal shares of its time.

    Args:
        steps: runs a step on each of some batches; returns losses, [n_steps, n_losses].
        batches: without end.
        steps_per_run: most steps of a run.
        made_meanwhile: batches are made while steps go on, and waited for.
    """
    stamps = np.empty(n_steps + 1, np.float64)
    input_s = np.empty(n_steps, np.float64)
    losses = np.empty((n_steps, n_losses), np.float64)
    clock = time.monotonic
    with no_garbage_collection():
        stamps[0] = clock()
        for first in range(0, n_steps, steps_per_run):
            stop = min(first + steps_per_run, n_steps)
            taken = list(itertools.islice(batches, stop - first))
            input_s[first:stop] = (clock() - stamps[first]) / (stop - first)
            losses[first:stop] = steps(taken)
            stamps[first + 1 : stop + 1] = np.linspace(stamps[first], clock(), stop - first + 1)[1:]
    return StepTimes(
        start_s=stamps[:-1], end_s=stamps[1:], losses=losses, input_s=input_s if made_meanwhile else None
    )


def runs_of(batches: Iterator[Batch], steps_per_run: int) -> Iterator[list[Batch]]:
    """Batches without end, those of a run together."""
    while True:
        yield list(itertools.islice(batches, steps_per_run))


def seconds_unobserved(
    step: Callable[[Fed], object], batches: Iterator[Fed], *, n_steps: int, n_lead: int
) -> float:
    """Run steps, look at the clock twice, and keep no losses.

    Args:
        step: as for `run_steps`.
        batches: without end.
        n_lead: steps before those that are timed.
    Returns:
        seconds of a step, mean over those that are timed.
    """
    with no_garbage_collection():
        for _, batch in zip(range(n_lead), batches, strict=False):
            step(batch)
        start_s = time.monotonic()
        for _, batch in zip(range(n_steps), batches, strict=False):
            step(batch)
        return (time.monotonic() - start_s) / n_steps


def run_steps(
    step: Callable[[Batch], Losses], feeds: Sequence[Batch], *, n_steps: int, first: int, n_losses: int
) -> StepTimes:
    """Run steps back to back, without collecting garbage.

    Args:
        step: runs one step on the arrays of one batch; returns its `n_losses` losses.
        feeds: batches, taken in turn and again from the start.
        first: number of the first step; step s gets batch s modulo their count.
    """
    stamps = np.empty(n_steps + 1, np.float64)
    losses = np.empty((n_steps, n_losses), np.float64)
    turn = in_turn(feeds, first)
    clock = time.monotonic
    with no_garbage_collection():
        stamps[0] = clock()
        for index, batch in zip(range(n_steps), turn, strict=False):
            losses[index] = step(batch)
            stamps[index + 1] = clock()
    return StepTimes(start_s=stamps[:-1], end_s=stamps[1:], losses=losses)


def run_steps_on_pipeline(
    step: Callable[[Batch], Losses], batches: Iterator[Batch], *, n_steps: int, n_losses: int
) -> StepTimes:
    """Run steps back to back, each of which takes its batch when it begins; without collecting garbage.

    Args:
        step: as for `run_steps`.
        batches: without end, made while steps go on.
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
    return StepTimes(start_s=start_s, end_s=stamps[1:], losses=losses, input_s=has_batch_s - start_s)
