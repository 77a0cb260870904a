"""Progress of a run: a status line and a line per ended repeat; in a log, a line per stage."""

import math
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field

from rich.console import Console
from rich.text import Text

from harness.experiment.cases import Case
from harness.experiment.model import Experiment
from harness.experiment.schedule import Slot, baseline_of
from harness.measure.live import Remaining, WindowProgress
from harness.records.comparison import CONFIDENCE, SEQUENTIAL_CONFIDENCE, paired_ratios
from harness.records.record import Record
from harness.records.safe_text import plain, shortened


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioSoFar:
    """Ratio of a case's rate to the baseline's.

    Attributes:
        interval: lower and upper limit of the 95 % confidence interval; None with fewer than three repeats.
    """

    baseline: str
    value: float
    interval: tuple[float, float] | None

    def __str__(self) -> str:
        text = f"{self.value:.3g}× {self.baseline}"
        return text if self.interval is None else f"{text} ({self.interval[0]:.3g} to {self.interval[1]:.3g})"


def ratio_so_far(
    case: Case, cases: Sequence[Case], spec: Experiment, records: Sequence[Record]
) -> RatioSoFar | None:
    """Ratio of a case; None for the baseline itself, or if the two were not timed in turn.

    The ratio is unknown, too, until the baseline has its first record.

    Args:
        cases: all cases of the run.
        records: records of the run so far.
    """
    baseline = baseline_of(case, cases, spec.baseline)
    if baseline is None or baseline.id == case.id:
        return None
    of_both = ([r for r in records if r.case == name and r.status == "ok"] for name in (case.id, baseline.id))
    ratios = paired_ratios(*of_both)
    if not ratios.logs:
        return None
    mean = ratios.mean()
    half = mean.half_width(CONFIDENCE if spec.measure.until is None else SEQUENTIAL_CONFIDENCE)
    return RatioSoFar(
        baseline=str(baseline.strategy),
        value=math.exp(mean.value),
        interval=None if half is None else (math.exp(mean.value - half), math.exp(mean.value + half)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusLine:
    """Status line on standard error, removed when the work is done.

    Args:
        live: True if a person watches a terminal; False shows nothing.
    """

    live: bool

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        with self.changing() as say:
            say(what)
            yield

    @contextmanager
    def changing(self) -> Iterator[Callable[[str], None]]:
        if not self.live:
            yield lambda _: None
            return
        with Console(file=sys.stderr, highlight=False).status("") as status:
            yield lambda what: status.update(Text(plain(what)))


UNWATCHED = StatusLine(live=False)
"""Status line that shows nothing."""


_CAPTURE_S = 15.0
"""Usual time to capture a small workload and make its references."""
_OPENING_S = 5.0
"""Usual time to start, check and warm up one case."""


def rough_seconds(slots: Sequence[Slot], spec: Experiment) -> float:
    """Estimate before a run: its windows, and usual times for everything else."""
    windows_s = spec.measure.n_rounds * spec.measure.window_s
    return len(slots) * (_OPENING_S + windows_s) + _CAPTURE_S * len({slot.case.workload for slot in slots})


_LONG_S = 90.0
"""Shortest time left that is printed after the first round."""


@dataclass(slots=True, kw_only=True)
class _FirstBlock:
    """Times of windows of the first block, for an estimate before any repeat has ended."""

    n_all_rounds: int = 0
    _at_s: list[float] = field(default_factory=list)
    _cases: set[str] = field(default_factory=set)

    def see(self, moment: WindowProgress, now_s: float) -> None:
        if moment.n_rounds == 1 and moment.case in self._cases:
            # Rounds start over after a failure.
            self._at_s.clear()
            self._cases.clear()
        self.n_all_rounds = moment.n_all_rounds
        self._at_s.append(now_s)
        self._cases.add(moment.case)

    def seconds_left(self, prepared_s: float, now_s: float, n_repeats: int) -> float | None:
        """Estimate for this block and those after it; None before its second round.

        Args:
            prepared_s: time at which the block began.
        """
        n_cases, n_windows = len(self._cases), len(self._at_s)
        if n_windows <= n_cases:
            return None
        each_s = (self._at_s[-1] - self._at_s[0]) / (n_windows - 1)
        end_s = self._at_s[-1] + each_s * max(0, n_cases * self.n_all_rounds - n_windows)
        n_blocks_after = max(0, n_repeats - n_cases) / n_cases
        return max(0.0, end_s - now_s) + (end_s - prepared_s) * n_blocks_after


class Progress:
    """Prints to standard error, so that standard output holds results only.

    Args:
        n_slots: repeats of all cases, finished ones included.
        n_left: number of repeats still to run; None for all.
        live: True redraws a status line and prints each repeat; False prints stages and failures.
        quiet: True prints only notes.
    """

    def __init__(self, n_slots: int, *, n_left: int | None = None, live: bool, quiet: bool) -> None:
        self._n_slots = n_slots
        self._status = StatusLine(live=live and not quiet)
        self._console = Console(file=sys.stderr, highlight=False)
        self._quiet = quiet
        self._shown: set[tuple[str, ...]] = set()
        self._started_s = time.monotonic()
        self._n_left = n_slots if n_left is None else n_left
        self._n_ended = 0
        self._prepared_s = self._latest_end_s = self._started_s
        self._first_block = _FirstBlock()

    def begin(self, n_cases: int, seconds: float) -> None:
        """Print the size of the run, with an estimate of how long it takes."""
        if not self._quiet:
            counts = [
                f"{n} {what}{'' if n == 1 else 's'}"
                for n, what in ((n_cases, "case"), (self._n_left, "repeat"))
            ]
            self.note(f"{', '.join(counts)} in all, {_about(seconds)}")

    def prepared(self) -> None:
        """Note that captures and references, which later blocks need not make, are done."""
        self._prepared_s = time.monotonic()

    def stage(self, name: str, what: str) -> None:
        """Print once that a stage begins, unless a person sees it on the status line."""
        if self._quiet or self._status.live or self._is_repeated(name, what):
            return
        left_s = self.left().seconds
        left = f", {_about(left_s)} left" if left_s and self._n_left else ""
        self.note(f"{self._clock()} {name}: {what}{left}")

    def _is_repeated(self, *line: str) -> bool:
        is_repeated = line in self._shown
        self._shown.add(line)
        return is_repeated

    def doing(self, what: str) -> AbstractContextManager[None]:
        return self._status.doing(what)

    def preparing(self, workload: str, limit_s: float) -> AbstractContextManager[None]:
        self.stage("capture", workload)
        return self.doing(f"capturing {workload} and making its references (limit {_span(limit_s)})")

    def changing(self) -> AbstractContextManager[Callable[[str], None]]:
        return self._status.changing()

    def expect(self, n_more: int) -> None:
        self._n_slots += n_more
        self._n_left += n_more

    def ended(self, slot: Slot, record: Record, ratio: RatioSoFar | None = None) -> None:
        self._n_left -= 1
        if record.status not in ("failed", "skipped"):
            self._n_ended += 1
            self._latest_end_s = time.monotonic()
        is_usable = record.status == "ok"
        # A case without a result lacks it for the same reason in each repeat.
        is_shown = self._status.live if is_usable else not self._is_repeated(slot.case.id, record.status)
        if self._quiet or not is_shown:
            return
        place = f"[{slot.order + 1}/{self._n_slots}]"
        known = f", {ratio} so far" if ratio is not None and is_usable else ""
        self.note(f"{place} {self._clock()} {slot.title}: {_outcome(record)}{known}")

    def left(self) -> Remaining:
        if not self._n_ended:
            now_s = time.monotonic()
            left_s = self._first_block.seconds_left(self._prepared_s, now_s, self._n_left)
            return Remaining(n_repeats=self._n_left, seconds=left_s)
        # Repeats of a block end together: time since then counts for the next block.
        each_s = (self._latest_end_s - self._started_s) / self._n_ended
        since_s = time.monotonic() - self._latest_end_s
        return Remaining(n_repeats=self._n_left, seconds=max(0.0, each_s * self._n_left - since_s))

    def live(self, moment: WindowProgress) -> str:
        if not self._n_ended:
            self._see_first_block(moment)
        text = f"round {moment.n_rounds} of {moment.n_all_rounds}: {moment.workload} {moment.strategy} "
        text += f"{_digits(moment.examples_per_s)} examples/s"
        left_s = self.left().seconds
        return text if left_s is None else f"{text}, about {_span(left_s)} left"

    def _see_first_block(self, moment: WindowProgress) -> None:
        was_known = self.left().seconds is not None
        self._first_block.see(moment, time.monotonic())
        left_s = self.left().seconds
        if not was_known and left_s is not None and left_s >= _LONG_S:
            self.stage("measure", f"round 1 of {moment.n_all_rounds} is done")

    def note(self, text: str) -> None:
        # The run goes on even if its reader has left or the disk of its log is full.
        with suppress(OSError):
            if sys.stderr.isatty():
                # Text, not str: brackets and colons in a name would be read as markup.
                self._console.print(Text(plain(text)))
            else:
                # One line each, however long.
                print(plain(text), file=sys.stderr)  # noqa: T201 - what a run says meanwhile

    def _clock(self) -> str:
        return _span(time.monotonic() - self._started_s)


def _span(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _about(seconds: float) -> str:
    if seconds < 90:
        return f"about {max(10, round(seconds, -1)):.0f} s"
    return f"about {seconds / 60:.0f} min" if seconds < 5400 else f"about {seconds / 3600:.1f} h"


def _outcome(record: Record) -> str:
    if record.error is not None:
        return f"{record.status}: {shortened(record.error.message)}"
    rate = record.median_examples_per_s
    if rate is None or record.median_step_s is None:
        return record.status
    # The same figures as in the tables that follow.
    text = f"{_digits(rate)} examples/s, median step {_digits(record.median_step_s * 1e3)} ms"
    if record.equivalence is not None and record.equivalence.checked_in_repeat == record.repeat:
        text += f", {_word(record)}"
        if record.control:
            text += " (control)"
        elif record.equivalence.reason is not None:
            text += f" ({shortened(record.equivalence.reason)})"
    return text if record.status == "ok" else f"{text}, {record.status}: {record.plausibility}"


def _word(record: Record) -> str:
    check = record.equivalence
    assert check is not None
    if record.strategy_class == "bounded":
        words = {True: "within bound", False: "beyond bound", None: "undecidable"}
        return words[check.within_bound]
    return {True: "equivalent", False: "not equivalent", None: "undecidable"}[check.equivalent]


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 99.95 else f"{value:#.3g}"
