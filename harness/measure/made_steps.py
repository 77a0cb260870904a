"""Steps that the workers of a case made in its windows, as arrays over workers and steps."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.measure.core_use import CoreUse
from harness.records.steps_file import Steps
from harness.worker.jobs.training import TimedSteps

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Steps made in one go, the first `n_lead` of them not counted; number -1 is not counted at all."""

    number: int
    n_lead: int
    rows: tuple[TimedSteps, ...]
    use: CoreUse | None = None

    @property
    def n_steps(self) -> int:
        """Those included that are not counted."""
        return len(self.rows[0].times.start_s)

    @property
    def slowest_s(self) -> Floats:
        """Time of each step on its slowest worker; [n_steps]."""
        each_s = np.stack([row.times.end_s - row.times.start_s for row in self.rows])
        longest_s: Floats = np.max(each_s, axis=0)
        return longest_s

    @property
    def input_s(self) -> Floats | None:
        """Seconds until workers had the batch of each step; [n_workers, n_steps], None for staged ones."""
        waits = [row.times.input_s for row in self.rows if row.times.input_s is not None]
        return np.stack(waits) if len(waits) == len(self.rows) else None

    @property
    def wall_s(self) -> float:
        """From the first counted step to the last, on the slowest worker."""
        return max(float(row.times.end_s[-1] - row.times.start_s[self.n_lead]) for row in self.rows)


def spread_indices(n: int, most: int) -> npt.NDArray[np.int64]:
    """Choose at most `most` of n indices, evenly, the first and the last included."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(np.int64))


def everything(windows: Sequence[Window]) -> tuple[Floats, Floats, Floats, Floats]:
    """Put all steps together.

    Returns:
        Starts and ends, [n_workers, n_steps]; losses, [n_workers, n_steps, most replicas]; weights of the
        losses, [n_workers, most replicas]. Where a worker has fewer replicas, both are 0.
    """
    first = windows[0].rows
    most = max(len(row.weights) for row in first)
    weights = np.stack([_padded(np.asarray(row.weights, np.float64), most) for row in first])
    start_s = np.concatenate([np.stack([row.times.start_s for row in w.rows]) for w in windows], axis=1)
    end_s = np.concatenate([np.stack([row.times.end_s for row in w.rows]) for w in windows], axis=1)
    losses = np.concatenate(
        [np.stack([_padded(row.times.losses, most) for row in w.rows]) for w in windows], axis=1
    )
    return start_s, end_s, losses, weights


def steps_of_workers(windows: Sequence[Window]) -> Steps:
    """Every step of every worker, with the mean loss of its own examples, or its replicas' sum."""
    start_s, end_s, losses, weights = everything(windows)
    means = np.einsum("wsl,wl->ws", losses, weights) / np.sum(weights, axis=1, keepdims=True)
    n_workers, n_steps = start_s.shape
    lengths = [window.n_steps for window in windows]
    numbers = np.repeat(np.asarray([window.number for window in windows], dtype=np.int32), lengths)
    uncounted = np.concatenate(
        [
            np.arange(n) < (n if window.number < 0 else window.n_lead)
            for n, window in zip(lengths, windows, strict=True)
        ]
    )
    waits = [window.input_s for window in windows]
    known = [wait_s for wait_s in waits if wait_s is not None]
    return Steps(
        worker=np.repeat(np.arange(n_workers, dtype=np.int32), n_steps),
        step=np.tile(np.arange(n_steps, dtype=np.int32), n_workers),
        start_s=start_s.ravel(),
        end_s=end_s.ravel(),
        loss=means.ravel(),
        warmup=np.tile(uncounted, n_workers),
        window=np.tile(numbers, n_workers),
        input_s=np.concatenate(known, axis=1).ravel() if len(known) == len(waits) else None,
    )


def _padded(values: Floats, length: int) -> Floats:
    """Fill the last axis up with zeros."""
    missing = length - values.shape[-1]
    return np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, missing)])
