"""The timed loop inside a worker: a prepared callable, batches that lie ready, one timestamp per step."""

import contextlib
import gc
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimes:
    """What the loop saw of some consecutive steps.

    Attributes:
        start_s, end_s: [n_steps], monotonic; a step starts when the one before it ends.
        losses: [n_steps, n_losses], one for each local shard.
    """

    start_s: npt.NDArray[np.float64]
    end_s: npt.NDArray[np.float64]
    losses: npt.NDArray[np.float64]


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


def seconds_unobserved(
    step: Callable[[Sequence[npt.NDArray[np.generic]]], object],
    feeds: Sequence[Sequence[npt.NDArray[np.generic]]],
    *,
    n_steps: int,
    n_lead: int,
    first: int,
) -> float:
    """Run steps, look at the clock twice, and keep no losses.

    Args:
        step, feeds, first: as for `run_steps`.
        n_lead: steps before those that are timed.
    Returns:
        seconds of a step, mean over those that are timed.
    """
    turn = itertools.islice(itertools.cycle(feeds), first % len(feeds), None)
    with no_garbage_collection():
        for _, batch in zip(range(n_lead), turn, strict=False):
            step(batch)
        start_s = time.monotonic()
        for _, batch in zip(range(n_steps), turn, strict=False):
            step(batch)
        return (time.monotonic() - start_s) / n_steps


def run_steps(
    step: Callable[[Sequence[npt.NDArray[np.generic]]], Sequence[npt.NDArray[np.generic] | float]],
    feeds: Sequence[Sequence[npt.NDArray[np.generic]]],
    *,
    n_steps: int,
    first: int,
    n_losses: int,
) -> StepTimes:
    """Run steps back to back, without collecting garbage.

    Args:
        step: runs one step on the arrays of one batch; returns its `n_losses` losses.
        feeds: batches, taken in turn and again from the start.
        first: number of the first step; step s gets batch s modulo their count.
    """
    stamps = np.empty(n_steps + 1, np.float64)
    losses = np.empty((n_steps, n_losses), np.float64)
    turn = itertools.islice(itertools.cycle(feeds), first % len(feeds), None)
    clock = time.monotonic
    with no_garbage_collection():
        stamps[0] = clock()
        for index, batch in zip(range(n_steps), turn, strict=False):
            losses[index] = step(batch)
            stamps[index + 1] = clock()
    return StepTimes(start_s=stamps[:-1], end_s=stamps[1:], losses=losses)
