"""A block: cases that are ready at the same time and take short windows in turn."""

import itertools
import secrets
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeVar

from harness.errors import CaseError, HarnessError, first_line
from harness.experiment.spec import Measure
from harness.measure.rounds import balanced_orders
from harness.measure.timeouts import Timeouts
from harness.provision.failures import REFUSED_STEP, LinkDown, WorkerDied, WorkerUnresponsive
from harness.provision.protocols import Cluster
from harness.records.record import Rounds
from harness.run.open_case import CaseRun, OpenCase, Repeat, n_rounds

Value = TypeVar("Value")

_LEAST_OPEN = 2  # a case and what it is compared with
_MEMORY_MARGIN = 1.5
_LOST = (WorkerDied, WorkerUnresponsive, LinkDown)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockResults:
    """What became of the cases of a block, by the cases' ids.

    Attributes:
        postponed: those that were not opened, since memory would not have held them too.
        wall_s: seconds spent on each.
    """

    runs: Mapping[str, CaseRun]
    errors: Mapping[str, CaseError]
    postponed: tuple[str, ...]
    wall_s: Mapping[str, float]


@dataclass(slots=True, kw_only=True)
class Block:
    """Opens cases, has them take their windows, and closes them.

    Attributes:
        baseline: id of the case that others are compared with; opened first, and once more if it fails.
        beside: the baseline where none of the cases is it: timed for ratios, and not recorded.
        doing: hears what goes on now.
        tell: hears what a person should know.
    """

    cluster: Cluster
    measure: Measure
    timeouts: Timeouts
    baseline: str | None
    beside: Repeat | None
    doing: Callable[[str], None]
    tell: Callable[[str], None]
    _open: dict[str, OpenCase] = field(default_factory=dict)
    _errors: dict[str, CaseError] = field(default_factory=dict)
    _notes: dict[str, str] = field(default_factory=dict)
    _step_s: dict[str, list[float]] = field(default_factory=dict)
    _wall_s: dict[str, float] = field(default_factory=dict)
    _has_lost: bool = False

    def run(self, repeats: Sequence[Repeat], *, seed: str) -> BlockResults:
        """Run one repeat of each case; nothing of them is left when it returns.

        Args:
            repeats: of different cases.
            seed: of the orders in which they take their windows.
        Raises:
            HarnessError: other than `CaseError`: the run cannot go on.
        """
        ordered = sorted(repeats, key=lambda each: _id(each) != self.baseline)
        if self.beside is not None:
            ordered.insert(0, self.beside)
            self.baseline = _id(self.beside)
        with ExitStack() as stack:
            postponed = self._open_all(ordered, stack)
            self._take_rounds(seed, stack)
            runs = self._finished()
        if self.beside is not None:
            self._errors.pop(_id(self.beside), None)
        return BlockResults(runs=runs, errors=self._errors, postponed=postponed, wall_s=self._wall_s)

    def _open_all(self, repeats: Sequence[Repeat], stack: ExitStack) -> tuple[str, ...]:
        """Open as many as memory holds; return the ids of the others."""
        left_bytes: list[int] = []
        for index, repeat in enumerate(repeats):
            if len(self._open) >= _LEAST_OPEN and not _has_room(left_bytes):
                return tuple(map(_id, repeats[index:]))
            self.doing(f"opening {_title(repeat)}")
            self._try(_id(repeat), partial(self._opened, repeat, stack))
            known = [self._try(name, case.memory_left_bytes) for name, case in list(self._open.items())[-1:]]
            left_bytes += [n_bytes for n_bytes in known if n_bytes is not None]
        return ()

    def _opened(self, repeat: Repeat, stack: ExitStack) -> None:
        case = OpenCase(self.cluster, repeat, self.measure, self.timeouts)
        stack.callback(case.close)
        try:
            case.open()
        except CaseError as error:
            case.close()
            why = self._why_again(_id(repeat), error)
            if why is None:
                raise
            self._open_again(repeat, why, stack)
            return
        self._open[_id(repeat)] = case
        self._step_s.setdefault(_id(repeat), [])

    def _open_again(self, repeat: Repeat, why: str, stack: ExitStack) -> None:
        note = f"run again on fresh processes, {why}"
        self._notes[_id(repeat)] = note
        self.tell(f"{_title(repeat)}: {note}")
        self._opened(repeat, stack)

    def _why_again(self, name: str, error: CaseError) -> str | None:
        """Why a failed case is opened once more; None where its failure tells of the case itself."""
        was_lost, self._has_lost = self._has_lost, self._has_lost or isinstance(error, _LOST)
        if name in self._notes:
            return None
        if error.kind == REFUSED_STEP:
            return "since TensorFlow by chance took a step for one before"
        if name == self.baseline:
            return f"for ratios to it: {first_line(str(error))}"
        if was_lost and isinstance(error, _LOST):
            return f"after a worker was lost: {first_line(str(error))}"
        return None

    def _take_rounds(self, seed: str, stack: ExitStack) -> None:
        names = list(self._open)
        n_wanted, n_taken = n_rounds(self.measure), 0
        # A case fails at most twice, and each time its round is taken again.
        orders = iter(balanced_orders(len(names), n_wanted + 2 * len(names), seed))
        while n_taken < n_wanted and self._open:
            self.doing(f"round {n_taken + 1} of {n_wanted}")
            n_taken += self._take_round([names[place] for place in next(orders)], stack)

    def _take_round(self, names: Sequence[str], stack: ExitStack) -> bool:
        """Have each open case take a window; whether all of them did."""
        taken: dict[str, float] = {}
        for name in names:
            case = self._open.get(name)
            if case is None:
                continue
            step_s = self._try(name, case.window)
            if step_s is None:
                self._renew(name, case, stack)
                return False
            taken[name] = step_s
        for name, step_s in taken.items():
            self._step_s[name].append(step_s)
        return True

    def _renew(self, name: str, case: OpenCase, stack: ExitStack) -> None:
        """Close a failed case, and open it once more where that is worth it."""
        error = self._errors[name]
        self._open.pop(name).close()
        why = self._why_again(name, error)
        if why is not None:
            del self._errors[name]
            self._try(name, partial(self._open_again, case.repeat, why, stack))

    def _finished(self) -> dict[str, CaseRun]:
        block = secrets.token_hex(4)
        baseline_s = self._step_s.get(self.baseline) if self.baseline else None
        runs: dict[str, CaseRun] = {}
        for name, case in list(self._open.items()):
            if self.beside is not None and name == _id(self.beside):
                continue
            self.doing(f"collecting {_title(case.repeat)}")
            n_steps, n_lead = case.window_shape
            rounds = Rounds(
                block=block,
                n_steps=n_steps,
                n_lead=n_lead,
                step_s=tuple(self._step_s[name]),
                baseline=None if baseline_s is None or name == self.baseline else self.baseline,
                baseline_step_s=None if baseline_s is None or name == self.baseline else tuple(baseline_s),
            )
            run = self._try(name, partial(case.finish, rounds))
            case.close()
            self._try(name, case.require_saved)
            if run is not None and name not in self._errors:
                note = self._notes.get(name)
                runs[name] = run if note is None else replace(run, notes=(*run.notes, note))
        return runs

    def _try(self, name: str, act: Callable[[], Value]) -> Value | None:
        """Do something for a case; None where it failed, which is noted."""
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


def unexpected(error: Exception) -> CaseError:
    """Our own mistake, as the failure of the case that met it."""
    failure = CaseError(
        "internal-error",
        f"unexpected {type(error).__name__}: {first_line(str(error))}; report the traceback in failure.log",
        stage="run",
    )
    failure.add_note("".join(traceback.format_exception(error)).rstrip())
    return failure


def _has_room(left_bytes: Sequence[int]) -> bool:
    """Whether another case as large as the largest so far fits.

    Args:
        left_bytes: memory left after each case was opened, in their order.
    """
    if len(left_bytes) < _LEAST_OPEN:
        return True
    largest = max(before - after for before, after in itertools.pairwise(left_bytes))
    return left_bytes[-1] > _MEMORY_MARGIN * largest


def _id(repeat: Repeat) -> str:
    return repeat.prepared.case.id


def _title(repeat: Repeat) -> str:
    case = repeat.prepared.case
    return f"{case.workload_name} {case.strategy} {case.shape.size}"
