"""Measures one case on its processes: warm-up, one timed window, and the counters on both sides of it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from harness.measure.timeouts import USUAL, Timeouts
from harness.measure.windows import CHUNK_STEPS, MAX_CHUNKS, WarmUp, is_settled, window_figures
from harness.provision.protocols import ProcessSet
from harness.records.record import StepSeconds
from harness.records.steps_file import Steps
from harness.worker.counters.interface import sent_per_step
from harness.worker.counters.read import Counters, read_counters
from harness.worker.counters.tcp import TcpTraffic, merge
from harness.worker.jobs.training import TimedSteps, peak_rss_bytes, run_steps
from harness.worker.process.job import Args, Job, Result

MAX_LOSSES = 100
_COUNTER_S = 10.0

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """The measured fields of a record, and every step for `steps.parquet`.

    Attributes:
        settled: False when the warm-up did not end within the longest one allowed.
        tcp: None where the kernel's counters cannot be read.
        interface_bytes_per_step: sent by the interfaces between workers; None where others send through them.
        loss: of the global batch, the example-weighted mean or the sum over all workers, of at most
            `MAX_LOSSES` timed steps, the first and the last included.
    """

    examples_per_s: float
    step_s: StepSeconds
    warmup_steps: int
    settled: bool
    tcp: TcpTraffic | None
    interface_bytes_per_step: float | None
    peak_rss_bytes: tuple[int | None, ...]
    loss: tuple[float, ...]
    steps: Steps


def measure(
    processes: ProcessSet,
    *,
    n_steps: int,
    warmup: WarmUp,
    batch_size: int,
    period: int = 1,
    isolated: bool = False,
    timeouts: Timeouts = USUAL,
) -> Measurement:
    """Run a case's steps, from the first one on, in processes whose sessions are loaded and batches staged.

    The last warm-up step, if there is any, runs in one go with the window: workers start a little
    apart and meet in it. Bytes are counted over both; where steps differ, more warm-up steps join them until
    they are whole periods.

    Args:
        n_steps: in the timed window.
        warmup: number of steps before it, or `auto`: as many as it takes, see `windows.transient_steps`.
        batch_size: examples of the global batch.
        period: steps after which what a step sends begins anew.
        isolated: see `Cluster`; interfaces that others use are not read.
    Raises:
        CaseError: as `ProcessSet.call`.
    """
    run = _Run(processes, timeouts, isolated=isolated)
    settled, n_lead = True, 0 if warmup == 0 else 1
    n_lead += -(n_lead + n_steps) % period
    if warmup == "auto":
        settled = _warm_up(run)
    elif warmup > n_lead:
        run.first_steps(warmup - n_lead)
    before = run.counters()
    run.steps(n_lead + n_steps)
    after = run.counters()
    tcp = merge([c.tcp for c in before], [c.tcp for c in after], n_steps=n_lead + n_steps)
    interface_bytes = sent_per_step(
        [c.interface for c in before], [c.interface for c in after], n_steps=n_lead + n_steps
    )
    peak_rss_bytes = run.peak_rss_bytes()
    start_s, end_s, losses, weights = run.everything()
    figures = window_figures(start_s[:, -n_steps:], end_s[:, -n_steps:], batch_size=batch_size)
    warmup_steps = start_s.shape[1] - n_steps
    global_loss = np.einsum("wsl,wl->s", losses, weights)[warmup_steps:]
    return Measurement(
        examples_per_s=figures.examples_per_s,
        step_s=figures.step_s,
        warmup_steps=warmup_steps,
        settled=settled,
        tcp=tcp,
        interface_bytes_per_step=interface_bytes,
        peak_rss_bytes=peak_rss_bytes,
        loss=tuple(float(value) for value in global_loss[spread_indices(n_steps, MAX_LOSSES)]),
        steps=_steps(start_s, end_s, _worker_losses(losses, weights), warmup_steps),
    )


def spread_indices(n: int, most: int) -> npt.NDArray[np.int64]:
    """Choose at most `most` of n indices, evenly, the first and the last included."""
    return np.unique(np.linspace(0, n - 1, min(n, most)).round().astype(np.int64))


class _Run:
    """The steps made so far, on all workers."""

    def __init__(self, processes: ProcessSet, timeouts: Timeouts, *, isolated: bool) -> None:
        self._processes = processes
        self._timeouts = timeouts
        self._n_workers = len(processes.pids)
        self._isolated = isolated
        self._rows: list[list[TimedSteps]] = []
        self._n_done = 0

    def steps(self, n_steps: int) -> None:
        """Let all workers make steps; returns when the last one has."""
        if n_steps == 0:
            return
        args = (n_steps, self._n_done)
        known_s = self.slowest_s().tolist() if self._rows else ()
        timed = self._processes.call(
            run_steps, [args] * self._n_workers, timeout_s=self._timeouts.steps_s(n_steps, known_s)
        )
        self._rows.append([steps for steps in timed if steps.weights])
        self._n_done += n_steps

    def first_steps(self, n_steps: int) -> None:
        """Let all workers make their first steps; the first alone, to learn how long the others take."""
        self.steps(1)
        self.steps(n_steps - 1)

    def counters(self) -> list[Counters]:
        """Read all workers' counters."""
        args = [(host if self._isolated else None,) for host in self._processes.hosts]
        return self._quickly(read_counters, args)

    def peak_rss_bytes(self) -> tuple[int | None, ...]:
        """Read all workers' largest memory."""
        return tuple(self._quickly(peak_rss_bytes, [()] * self._n_workers))

    def _quickly(self, job: Job[*Args, Result], args: Sequence[tuple[*Args]]) -> list[Result]:
        return self._processes.call(job, args, timeout_s=self._timeouts.factor * _COUNTER_S, stage="collect")

    def slowest_s(self) -> Floats:
        """Time of each step on its slowest worker; [n_steps]."""
        start_s, end_s, _, _ = self.everything()
        slowest_s: Floats = np.max(end_s - start_s, axis=0)
        return slowest_s

    def everything(self) -> tuple[Floats, Floats, Floats, Floats]:
        """Put all steps together.

        Returns:
            Starts and ends, [n_workers, n_steps]; losses, [n_workers, n_steps, most replicas]; weights of the
            losses, [n_workers, most replicas]. Where a worker has fewer replicas, both are 0.
        """
        most = max(len(result.weights) for result in self._rows[0])
        weights = np.stack(
            [_padded(np.asarray(result.weights, np.float64), most) for result in self._rows[0]]
        )
        start_s = np.concatenate([np.stack([r.times.start_s for r in row]) for row in self._rows], axis=1)
        end_s = np.concatenate([np.stack([r.times.end_s for r in row]) for row in self._rows], axis=1)
        losses = np.concatenate(
            [np.stack([_padded(r.times.losses, most) for r in row]) for row in self._rows], axis=1
        )
        return start_s, end_s, losses, weights


def _warm_up(run: _Run) -> bool:
    for chunk in range(MAX_CHUNKS):
        (run.steps if chunk else run.first_steps)(CHUNK_STEPS)
        if is_settled(run.slowest_s()):
            return True
    return False


def _worker_losses(losses: Floats, weights: Floats) -> Floats:
    """Mean loss of each worker's own examples, or of its replicas' sums; [n_workers, n_steps]."""
    means: Floats = np.einsum("wsl,wl->ws", losses, weights) / np.sum(weights, axis=1, keepdims=True)
    return means


def _steps(start_s: Floats, end_s: Floats, losses: Floats, warmup_steps: int) -> Steps:
    n_workers, n_steps = start_s.shape
    step = np.tile(np.arange(n_steps, dtype=np.int32), n_workers)
    return Steps(
        worker=np.repeat(np.arange(n_workers, dtype=np.int32), n_steps),
        step=step,
        start_s=start_s.ravel(),
        end_s=end_s.ravel(),
        loss=losses.ravel(),
        warmup=step < warmup_steps,
    )


def _padded(values: Floats, length: int) -> Floats:
    """Fill the last axis up with zeros."""
    missing = length - values.shape[-1]
    return np.pad(values, [(0, 0)] * (values.ndim - 1) + [(0, missing)])


def tcp_fields(tcp: TcpTraffic | None) -> tuple[float | None, Sequence[Sequence[float]] | None]:
    """Give `tcp_bytes_per_step` and `tcp_matrix` of a record; both None where nothing could be read."""
    return (None, None) if tcp is None else (tcp.bytes_per_step, tcp.matrix)
