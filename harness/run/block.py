"""A block: cases that are ready at the same time and take short windows in turn."""

import itertools
import random
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from harness.errors import NO_DEVICE, CaseError, HarnessError, first_line, unexpected
from harness.experiment.model import Measure
from harness.measure.timeouts import Timeouts
from harness.measure.windows import balanced_orders
from harness.provision.failures import REFUSED_STEP, WorkerFailure, was_refused_by_gpu
from harness.provision.protocols import Cluster
from harness.records.outcome import Rounds
from harness.run.failure_causes import with_fault_cause
from harness.run.open_case import CaseRun, OpenCase
from harness.run.process_setup import PreparedCase

Value = TypeVar("Value")

_LEAST_OPEN = 2  # a case and the one it is compared with
_MEMORY_MARGIN = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockResults:
    """Outcomes of the cases of a block, by the cases' ids.

    Attributes:
        postponed: ids of cases for which memory, or a GPU, had no room beside the others.
        wall_s: seconds spent on each case.
    """

    runs: Mapping[str, CaseRun]
    errors: Mapping[str, CaseError]
    postponed: tuple[str, ...]
    wall_s: Mapping[str, float]


@dataclass(slots=True, kw_only=True)
class Block:
    """Opens cases, lets them take their windows in turn, and closes them.

    Attributes:
        baseline: id of the case that others are compared with; opened first or second, and reopened once if
            it fails.
        beside: the baseline if no case of the block is; timed for ratios, not recorded.
        doing: called with the current activity.
        notify: called with messages to print.
        see: called for each window of a recorded case, with the case, its median step and the round.
    """

    cluster: Cluster
    measure: Measure
    timeouts: Timeouts
    baseline: str | None
    beside: PreparedCase | None
    doing: Callable[[str], None]
    notify: Callable[[str], None]
    see: Callable[[OpenCase, float, int], None]
    _open: dict[str, OpenCase] = field(default_factory=dict)
    _errors: dict[str, CaseError] = field(default_factory=dict)
    _notes: dict[str, str] = field(default_factory=dict)
    _step_s: dict[str, list[float]] = field(default_factory=dict)
    _wall_s: dict[str, float] = field(default_factory=dict)
    _baseline_first: int | None = None
    _has_lost: bool = False
    _crowded_out: list[str] = field(default_factory=list)
    _stack: ExitStack = field(default_factory=ExitStack)

    def run(self, repeats: Sequence[PreparedCase], *, seed: str) -> BlockResults:
        """Run one repeat of each case; all of them are closed when it returns.

        Args:
            repeats: repeats of different cases.
            seed: seed of the orders of their windows.
        Raises:
            HarnessError: any but `CaseError`: the run cannot go on.
        """
        if self.beside is not None:
            self.baseline = _id(self.beside)
        together = list(repeats) if self.beside is None else [self.beside, *repeats]
        firsts = (open_case.first for open_case in together if _id(open_case) == self.baseline)
        self._baseline_first = next(firsts, None)
        ordered = sorted(together, key=lambda open_case: _id(open_case) != self.baseline)
        if self.baseline is not None and opens_second(self.measure.seed, repeats[0].number):
            ordered[:_LEAST_OPEN] = reversed(ordered[:_LEAST_OPEN])
        with ExitStack() as self._stack:
            postponed = self._open_all(ordered)
            self._take_rounds(seed)
            runs = self._finished()
        if self.beside is not None:
            self._errors.pop(_id(self.beside), None)
        postponed = (*self._crowded_out, *postponed)
        return BlockResults(runs=runs, errors=self._errors, postponed=postponed, wall_s=self._wall_s)

    def _open_all(self, repeats: Sequence[PreparedCase]) -> tuple[str, ...]:
        left_bytes: dict[str, list[int]] = {}
        for index, repeat in enumerate(repeats):
            if len(self._open) >= _LEAST_OPEN and not all(map(_has_room, left_bytes.values())):
                return tuple(map(_id, repeats[index:]))
            self.doing(f"opening {_title(repeat)}")
            name = _id(repeat)
            self._try(name, partial(self._opened, repeat))
            if name in self._open:
                left = self._try(name, self._open[name].memory_left_bytes) or {}
                for place, n_bytes in left.items():
                    left_bytes.setdefault(place, []).append(n_bytes)
            self._leave_for_later(repeat)
            if name in self._open and name in self._errors:
                self._close(name)
        return ()

    def _leave_for_later(self, repeat: PreparedCase) -> None:
        name = _id(repeat)
        if was_refused_by_gpu(self._errors.get(name)) and self._recorded_beside(name):
            del self._errors[name]
            self._crowded_out.append(name)
            self.notify(f"{_title(repeat)}: runs later, because GPU memory was too small next to other cases")

    def _recorded_beside(self, name: str) -> set[str]:
        return self._open.keys() - {name, None if self.beside is None else _id(self.beside)}

    def _opened(self, repeat: PreparedCase) -> None:
        case = OpenCase(self.cluster, repeat, self.measure, self.timeouts)
        self._stack.callback(case.close)
        try:
            case.open()
        except CaseError as error:
            case.close()
            why = self._why_again(repeat, error)
            if why is None:
                raise
            self._open_again(repeat, why)
            return
        self._open[_id(repeat)] = case
        self._step_s.setdefault(_id(repeat), [])

    def _open_again(self, repeat: PreparedCase, why: str) -> None:
        note = f"run again on fresh processes, {why}"
        self._notes[_id(repeat)] = note
        self.notify(f"{_title(repeat)}: {note}")
        self._opened(repeat)

    def _why_again(self, repeat: PreparedCase, error: CaseError) -> str | None:
        """Reason to reopen a failed case; None if the case itself caused the failure."""
        name, faults = _id(repeat), repeat.case.scenario.faults
        is_lost = isinstance(error, WorkerFailure) and error.is_lost
        was_lost, self._has_lost = self._has_lost, self._has_lost or is_lost
        if name in self._notes or with_fault_cause(error, faults) is not error or error.kind == NO_DEVICE:
            return None
        if was_refused_by_gpu(error):
            return self._without_baseline_beside(name)
        if error.kind == REFUSED_STEP:
            return "because TensorFlow rejected a step by mistake"
        if name == self.baseline:
            return f"because ratios need the baseline: {first_line(str(error))}"
        if was_lost and is_lost:
            return f"after a worker was lost: {first_line(str(error))}"
        return None

    def _without_baseline_beside(self, name: str) -> str | None:
        beside = None if self.beside is None else _id(self.beside)
        if beside not in self._open or beside == name or self._recorded_beside(name):
            return None
        self._close(beside)
        return "because GPU memory was too small next to the baseline"

    def _take_rounds(self, seed: str) -> None:
        names = list(self._open)
        orders = balanced_orders(len(names), seed)
        while self._open and (n_taken := self._n_taken()) < self.measure.n_rounds:
            self.doing(f"round {n_taken + 1} of {self.measure.n_rounds}")
            self._take_round([names[place] for place in next(orders)])

    def _n_taken(self) -> int:
        return min(len(self._step_s[name]) for name in self._open)

    def _take_round(self, names: Sequence[str]) -> None:
        """Let each open case take a window; if one fails, discard the others' windows of this round."""
        seconds: dict[str, float] = {}
        for name in names:
            case = self._open.get(name)
            if case is None:
                continue
            step_s = self._try(name, case.window)
            if step_s is None:
                for other in seconds:
                    self._open[other].discard_windows(1)
                self._renew(name, case)
                return
            seconds[name] = step_s
            if self.beside is None or name != _id(self.beside):
                self.see(case, step_s, len(self._step_s[name]) + 1)
        for name, step_s in seconds.items():
            self._step_s[name].append(step_s)

    def _renew(self, name: str, case: OpenCase) -> None:
        error = self._errors[name]
        self._close(name)
        why = self._why_again(case.repeat, error)
        if why is None:
            self._leave_for_later(case.repeat)
            return
        del self._errors[name]
        self._try(name, partial(self._open_again, case.repeat, why))
        if name in self._open:
            # Earlier rounds belong to other processes.
            for other in self._open.values():
                other.discard_windows()
            # Also discard those of a closed case: rounds are paired by index.
            for step_s in self._step_s.values():
                step_s.clear()

    def _close(self, name: str) -> None:
        self._try(name, self._open.pop(name).close)

    def _finished(self) -> dict[str, CaseRun]:
        block = secrets.token_hex(4)
        baseline_s = self._step_s.get(self.baseline) if self.baseline else None
        runs: dict[str, CaseRun] = {}
        for name, case in list(self._open.items()):
            if self.beside is not None and name == _id(self.beside):
                continue
            self.doing(f"collecting {_title(case.repeat)}")
            run = self._try(name, case.finish)
            self._close(name)
            if run is not None:
                self._try(name, case.require_saved)
            if run is None or name in self._errors:
                continue
            n_steps, n_lead = case.window_shape
            rounds = Rounds(
                block=block,
                n_steps=n_steps,
                n_lead=n_lead,
                n_made=run.measurement.n_steps,
                first_worker=case.repeat.first,
                step_s=tuple(self._step_s[name]),
                baseline=None if baseline_s is None or name == self.baseline else self.baseline,
                baseline_step_s=None if baseline_s is None or name == self.baseline else tuple(baseline_s),
                baseline_first_worker=None if name == self.baseline else self._baseline_first,
            )
            note = self._notes.get(name)
            runs[name] = replace(run, rounds=rounds, notes=run.notes if note is None else (*run.notes, note))
        return runs

    def _try(self, name: str, act: Callable[[], Value]) -> Value | None:
        began_s = time.monotonic()
        try:
            return act()
        except CaseError as error:
            self._errors[name] = error
        except HarnessError:
            raise
        except Exception as error:  # noqa: BLE001 - a night's run must not end by our own mistake in one case
            self._errors[name] = unexpected(error)
        finally:
            self._wall_s[name] = self._wall_s.get(name, 0.0) + time.monotonic() - began_s
        return None


def opens_second(seed: int, number: int) -> bool:
    """True if a repeat opens the baseline second: one random repeat of each pair does.

    The case opened first was up to 3 % slower, in the same repeats of each run (decision 0041).
    """
    return (random.Random(f"{seed}/{number // 2}").random() < 0.5) == (number % 2 == 0)  # noqa: S311 - an order


def _has_room(left_bytes: Sequence[int]) -> bool:
    """True if another case of the largest size fits in the memory left."""
    if len(left_bytes) < _LEAST_OPEN:
        return True
    largest = max(before - after for before, after in itertools.pairwise(left_bytes))
    return left_bytes[-1] > _MEMORY_MARGIN * largest


def _id(repeat: PreparedCase) -> str:
    return repeat.case.id


def _title(repeat: PreparedCase) -> str:
    return repeat.case.title
