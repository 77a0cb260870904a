"""Collector of a case: warm-up, windows, bytes, traces, and pairs of windows with and without instruments."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.errors import CaseError, first_line
from harness.measure.machine_use import Consumption, consumption, core_use, stability
from harness.measure.timeouts import RECENT_PERIODS, USUAL, Timeouts
from harness.measure.windows import (
    CHUNK_STEPS,
    MAX_CHUNKS,
    Floats,
    WarmUp,
    Window,
    everything,
    input_wait,
    is_settled,
    spread_indices,
    step_seconds,
    steps_of_workers,
)
from harness.provision.protocols import ProcessSet
from harness.records.conditions import GpuFacts
from harness.records.costs import InputWait, ObserverEffect
from harness.records.outcome import Stability, StepSeconds
from harness.records.steps_file import Steps
from harness.worker.counters.network import TcpTraffic, merge, sent_bytes
from harness.worker.counters.read import Counters, read_counters
from harness.worker.jobs.training import TimedSteps, peak_rss_bytes, run_steps, settle, unobserved_steps
from harness.worker.process.job import Args, Job, Result

MAX_LOSSES = 100
_COUNTER_S = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Measurement:
    """The measured fields of a record, and every step for `steps.parquet`.

    Attributes:
        warmup_steps: steps before the first window. n_steps: steps in all windows, uncounted ones included.
        settled: False if the warm-up did not end within its limit.
        tcp: None if the kernel's counters cannot be read.
        interface_bytes_per_step: bytes sent by the interfaces between workers; None if others use them.
        hosts: number of the machine that each worker runs on; None if one is unknown.
        input_s: waiting time of counted steps for the input pipeline; None if batches are staged.
        loss: loss of the global batch, the example-weighted mean or the sum over all workers, of at most
            `MAX_LOSSES` steps after the warm-up, the first and the last included.
        gpus: kinds of the workers' GPUs; None without GPUs.
        lock: name of the lock file that the first worker's environment was installed from.
    """

    examples_per_s: float
    step_s: StepSeconds
    warmup_steps: int
    n_steps: int
    settled: bool
    tcp: TcpTraffic | None
    interface_bytes_per_step: float | None
    hosts: tuple[int, ...] | None
    peak_rss_bytes: tuple[int | None, ...]
    loss: tuple[float, ...]
    steps: Steps
    stability: Stability
    consumption: Consumption
    input_s: InputWait | None = None
    gpus: tuple[GpuFacts, ...] | None = None
    lock: str | None = None


class Collector:
    """Runs and counts the steps of a case, in processes with loaded sessions and staged batches.

    Args:
        batch_size: examples in the global batch.
        period: steps after which the kinds of steps repeat; windows are whole periods.
        averaging_period: steps from one averaging of variables, which is slow, to the next.
        whole_windows: True if workers do not wait for each other; a window is then a timed unit, else a
            period.
        isolated: True if no other program uses the workers' network; else interfaces are not read.
        settles: True if updates go on after a step; they must end before other cases get the cores.

    Attributes:
        resident_bytes: memory of the largest worker after the latest steps; None if unknown.
    """

    def __init__(
        self,
        processes: ProcessSet,
        *,
        batch_size: int,
        period: int = 1,
        averaging_period: int = 1,
        whole_windows: bool = False,
        isolated: bool = False,
        settles: bool = False,
        timeouts: Timeouts = USUAL,
    ) -> None:
        self._processes = processes
        self._batch_size = batch_size
        self._period = period
        self._averaging_period = averaging_period
        self._unit = None if whole_windows else period
        self._isolated = isolated
        self._settles = settles
        self._timeouts = timeouts
        self._n_workers = len(processes.pids)
        self._windows: list[Window] = []
        self._n_done = 0
        self._n_warmup = 0
        self._settled = True
        self._before: list[Counters] = []
        self.resident_bytes: int | None = None
        self._interface_bytes: float | None = 0.0 if isolated else None

    def warm_up(self, warmup: WarmUp) -> None:
        """Run the first steps of all workers.

        Args:
            warmup: number of steps, or `auto`: as many as it takes, see `windows.transient_steps`.
        Raises:
            CaseError: see `ProcessSet.call`.
        """
        if warmup == "auto":
            self._settled = self._settle_times()
        elif warmup:
            self._first_steps(warmup)
        # The step that averages waits for delays of the steps before it, so it must end a period.
        n_left = (1 - self._n_done) % self._averaging_period
        if n_left:
            self._steps(n_left)
        self._n_warmup = self._n_done
        self._wait_for_updates()
        self._before = self._counters()

    def window(self, n_steps: int, *, n_lead: int) -> float:
        """Run counted steps on all workers.

        Args:
            n_lead: uncounted steps before them, in which workers meet and caches fill.
        Returns:
            Median of the counted steps on their slowest worker, in seconds; see `Window.counted_s`.
        Raises:
            CaseError: see `ProcessSet.call`.
        """
        # Other cases use the interface between two windows.
        before = self._counters() if self._isolated else None
        self._steps(
            n_lead + n_steps, number=sum(window.number >= 0 for window in self._windows), n_lead=n_lead
        )
        self._wait_for_updates()
        if before is not None:
            self._add_interface_bytes(before, self._counters())
        return self._median_s(self._windows[-1])

    def discard(self, n_windows: int | None = None) -> None:
        numbered = [k for k, window in enumerate(self._windows) if window.number >= 0]
        for k in numbered if n_windows is None else numbered[-n_windows:]:
            self._windows[k] = replace(self._windows[k], number=-1)

    def measurement(self) -> Measurement:
        counted = [window for window in self._windows if window.number >= 0]
        n_steps = self._n_done - self._n_warmup
        last = self._counters()
        tcp = merge([c.tcp for c in self._before], [c.tcp for c in last], n_steps=n_steps)
        sent = self._interface_bytes
        _, _, losses, weights = everything(self._windows)
        global_loss = np.einsum("wsl,wl->s", losses, weights)[self._n_warmup :]
        step_s = step_seconds(
            np.concatenate([window.counted_s(self._unit) for window in counted]),
            n_steps=sum(window.n_counted for window in counted),
        )
        mean_s = step_s.mean
        assert mean_s is not None
        if self._unit is None:
            step_s = replace(step_s, p90=None, p99=None)  # there are too few windows
        return Measurement(
            examples_per_s=self._batch_size * step_s.n / sum(window.wall_s for window in counted),
            step_s=step_s,
            warmup_steps=self._n_warmup,
            n_steps=n_steps,
            settled=self._settled,
            tcp=tcp,
            interface_bytes_per_step=None if sent is None else sent / n_steps,
            hosts=_numbered([reading.machine for reading in last]),
            peak_rss_bytes=tuple(self._quickly(peak_rss_bytes, [()] * self._n_workers)),
            loss=tuple(float(value) for value in global_loss[spread_indices(n_steps, MAX_LOSSES)]),
            steps=steps_of_workers(self._windows),
            stability=stability(
                [window.use for window in counted], [self._median_s(window) for window in counted]
            ),
            consumption=consumption(
                [window.use for window in counted], sum(window.n_steps for window in counted)
            ),
            input_s=input_wait(counted, mean_s, self._unit),
            gpus=tuple(dict.fromkeys(kind for reading in last for kind in reading.gpus or ())) or None,
            lock=last[0].lock,
        )

    @property
    def median_s(self) -> float | None:
        """Median of the latest steps, or of periods' mean steps, in seconds; None before the first one."""
        if not self._windows:
            return None
        latest_s = self._latest_s(math.ceil(CHUNK_STEPS / self._period) * self._period)
        n_whole = len(latest_s) // self._period * self._period
        means_s = latest_s[len(latest_s) - n_whole :].reshape(-1, self._period).mean(axis=1)
        return float(np.median(means_s if n_whole else latest_s))

    def _latest_s(self, n_steps: int) -> Floats:
        latest: list[Floats] = []
        for window in reversed(self._windows):
            latest.insert(0, window.slowest_s)
            if sum(map(len, latest)) >= n_steps:
                break
        return np.concatenate([np.empty(0), *latest])[-n_steps:]

    def _median_s(self, window: Window) -> float:
        return float(np.median(window.counted_s(self._unit)))

    def _steps(self, n_steps: int, *, number: int = -1, n_lead: int = 0) -> None:
        averaging = self._averaging_period
        known_s = self._latest_s(RECENT_PERIODS * averaging).tolist()
        timed = self._processes.call(
            run_steps,
            [(n_steps, self._n_done)] * self._n_workers,
            timeout_s=self._timeouts.steps_s(n_steps, known_s, period=averaging),
        )
        rows = tuple(steps for steps in timed if steps.weights)
        known = [steps.resident_bytes for steps in timed if steps.resident_bytes is not None]
        self.resident_bytes = max(known, default=None)
        # If one worker reports all steps, the others were not observed.
        use = core_use([steps.cores for steps in timed]) if len(rows) == len(timed) else None
        self._windows.append(Window(number=number, n_lead=n_lead, rows=rows, use=use))
        self._n_done += n_steps

    def _first_steps(self, n_steps: int) -> None:
        """Run the first steps of all workers; the first one alone, to estimate the time of the others."""
        self._steps(1)
        if n_steps > 1:
            self._steps(n_steps - 1)

    def _settle_times(self) -> bool:
        for chunk in range(MAX_CHUNKS):
            (self._steps if chunk else self._first_steps)(CHUNK_STEPS)
            if is_settled(np.concatenate([window.slowest_s for window in self._windows])):
                return True
        return False

    def _wait_for_updates(self) -> None:
        if self._settles:
            args = [(self._n_workers,)] * self._n_workers
            self._processes.call(settle, args, timeout_s=self._timeouts.setup_s, stage="run")

    def _counters(self) -> list[Counters]:
        args = [(host if self._isolated else None,) for host in self._processes.hosts]
        return self._quickly(read_counters, args)

    def _add_interface_bytes(self, before: Sequence[Counters], after: Sequence[Counters]) -> None:
        sent = sent_bytes(
            [counters.interface for counters in before], [counters.interface for counters in after]
        )
        known = self._interface_bytes
        self._interface_bytes = None if sent is None or known is None else known + sent

    def _quickly(self, job: Job[*Args, Result], args: Sequence[tuple[*Args]]) -> list[Result]:
        return self._processes.call(job, args, timeout_s=self._timeouts.factor * _COUNTER_S, stage="collect")


def _numbered(machines: Sequence[str | None]) -> tuple[int, ...] | None:
    if None in machines:
        return None
    known = list(dict.fromkeys(machines))
    return tuple(map(known.index, machines))


def tcp_fields(tcp: TcpTraffic | None) -> tuple[float | None, Sequence[Sequence[float]] | None]:
    """Fields `tcp_bytes_per_step` and `tcp_matrix` of a record; both None if nothing could be read."""
    return (None, None) if tcp is None else (tcp.bytes_per_step, tcp.matrix)


def observer_effect(
    processes: ProcessSet,
    steps: Steps,
    *,
    n_pairs: int,
    window_shape: tuple[int, int],
    settles: bool = False,
    timeouts: Timeouts = USUAL,
) -> ObserverEffect:
    """Run windows with and without instruments, each kind first in every other pair.

    A failure does not invalidate the measurement.

    Args:
        steps: steps of the measurement.
        window_shape: counted steps of a window, and uncounted steps before them.
        settles: True if updates go on after a step.
    """
    n_steps, n_lead = window_shape
    n_workers = len(processes.pids)
    longest_s = float((steps.end_s - steps.start_s).max())
    limit_s = timeouts.steps_s(n_steps + n_lead, [longest_s])
    first = int(steps.step.max()) + 1
    with_s: list[float] = []
    without_s: list[float] = []

    def observed() -> None:
        args = [(n_lead + n_steps, first)] * n_workers
        timed = processes.call(run_steps, args, timeout_s=limit_s, stage="collect")
        with_s.append(max(_mean_s(steps, n_lead) for steps in timed if steps.weights))

    def unobserved() -> None:
        args = [(n_steps, n_lead, first)] * n_workers
        without_s.append(max(processes.call(unobserved_steps, args, timeout_s=limit_s, stage="collect")))

    try:
        for pair in range(n_pairs):
            for window in (observed, unobserved)[:: -1 if pair % 2 else 1]:
                window()
                first += n_lead + n_steps
                if settles:
                    workers = [(n_workers,)] * n_workers
                    processes.call(settle, workers, timeout_s=timeouts.setup_s, stage="collect")
    except CaseError as error:
        # Advice on failed cases is useless here: the case already has its result.
        what = first_line(str(error)).partition(";")[0]
        return ObserverEffect(why_none=f"a window failed: {what}", failed=True)
    return ObserverEffect(with_s=tuple(with_s), without_s=tuple(without_s))


def _mean_s(steps: TimedSteps, n_lead: int) -> float:
    counted_s = steps.times.end_s[-1] - steps.times.start_s[n_lead]
    return float(counted_s) / (len(steps.times.end_s) - n_lead)
