"""Profile of a step: computation of one replica, with the moments at which variables are used and updated.

Times are processor work in the order of a traced step. Recording slows each operation, so that all are scaled
to the median of untraced steps.
"""

from __future__ import annotations

import bisect
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import Annotated, TypeAlias

from pydantic import Field, TypeAdapter, ValidationError

from harness.canonical import JsonValue
from strategies.plan.schema import StepSummary, mistake

Span = tuple[float, float]
"""Start and end, in seconds."""
Seconds: TypeAlias = Annotated[float, Field(ge=0, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True, slots=True)
class VariableTimes:
    """Times of one variable in a replica's step, in seconds of forward and backward computation.

    Attributes:
        needed_s: computation before the first use of its value; None if no replica reads it.
        ready_s: computation until its gradient or new state is known; None without one.
        update_s: duration of its update, slots included.
    """

    needed_s: Seconds | None = None
    ready_s: Seconds | None = None
    update_s: Seconds = 0.0

    def scaled(self, factor: float) -> VariableTimes:
        return VariableTimes(
            needed_s=None if self.needed_s is None else self.needed_s * factor,
            ready_s=None if self.ready_s is None else self.ready_s * factor,
            update_s=self.update_s * factor,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class StepProfile:
    """Computation of one replica's step without communication.

    Attributes:
        examples: examples that the replica processes in a step.
        compute_s: duration of forward and backward computation.
        update_s: duration of all updates, with work that several share.
        variables: name → times.
        rows: variable → rows of its sparse gradient, where the trace shows them.
    """

    examples: Annotated[int, Field(ge=1)]
    compute_s: Annotated[Seconds, Field(gt=0)]
    update_s: Seconds
    variables: Mapping[str, VariableTimes]
    rows: Mapping[str, Annotated[float, Field(ge=0, allow_inf_nan=False)]] = field(default_factory=dict)

    @property
    def step_s(self) -> float:
        return self.compute_s + self.update_s

    def scaled_to(self, step_s: float) -> StepProfile:
        """The same profile with another duration of the whole step."""
        factor = step_s / self.step_s
        return replace(
            self,
            compute_s=self.compute_s * factor,
            update_s=self.update_s * factor,
            variables={name: times.scaled(factor) for name, times in self.variables.items()},
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class VariableNodes:
    """Operations from which the times of one variable are read, by names in the trace.

    Attributes:
        users: operations that use its value. makers: operations whose results make its gradient or new state.
        updates: operations of its update alone.
    """

    users: Sequence[str] = ()
    makers: Sequence[str] = ()
    updates: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class StoredProfile:
    """Profile of a workload's step, with its summary, from which steps of any strategy can be planned."""

    step: StepSummary
    profile: StepProfile

    def to_document(self) -> dict[str, JsonValue]:
        """Content of a repeat's `profile.json`."""
        document: dict[str, JsonValue] = TypeAdapter(StoredProfile).dump_python(self, mode="json")
        return document

    @classmethod
    def from_document(cls, data: bytes) -> StoredProfile:
        """Read the content of a `profile.json`.

        Raises:
            ValueError: it is not one, or has times that no step has.
        """
        try:
            return TypeAdapter(cls).validate_json(data)
        except ValidationError as error:
            raise ValueError(mistake(error)) from None


def profile_of(
    spans: Mapping[str, Sequence[Span]],
    variables: Mapping[str, VariableNodes],
    *,
    shared_updates: Iterable[str] = (),
    rows: Mapping[str, float] | None = None,
    examples: int,
) -> StepProfile:
    """Profile of one traced step.

    Args:
        spans: operation → start and end of each of its executions; a loop's are several.
        shared_updates: operations of updates that belong to no single variable.
        rows: variable → rows of its sparse gradient.
    """
    updating = {name for nodes in variables.values() for name in nodes.updates}.union(shared_updates)
    computed = _Clock([span for name, runs in spans.items() if name not in updating for span in runs])
    updated = _Clock([span for name, runs in spans.items() if name in updating for span in runs])
    alone_s = {
        name: sum(end_s - start_s for start_s, end_s in _known(spans, nodes.updates))
        for name, nodes in variables.items()
    }
    shared_s = sum(end_s - start_s for start_s, end_s in _known(spans, shared_updates))
    # Operations may run side by side: durations are scaled to the time in which any of them ran.
    factor = updated.total_s / max(sum(alone_s.values()) + shared_s, 1e-12)
    times = {}
    for name, nodes in variables.items():
        used_s = [start_s for start_s, _ in _known(spans, nodes.users)]
        made_s = [end_s for _, end_s in _known(spans, nodes.makers)]
        times[name] = VariableTimes(
            needed_s=computed.until(min(used_s)) if used_s else None,
            ready_s=computed.until(max(made_s)) if made_s else None,
            update_s=alone_s[name] * factor,
        )
    return StepProfile(
        examples=examples,
        compute_s=computed.total_s,
        update_s=updated.total_s,
        variables=times,
        rows=rows or {},
    )


def typical_profile(profiles: Sequence[StepProfile]) -> StepProfile:
    """Mean of traced steps without the fastest third and the slowest third, each rounded down.

    A mean of whole steps keeps what holds in each of them, which medians of single times would not: that
    parts do not exceed their sum.
    """
    n_outer = len(profiles) // 3
    ordered = sorted(profiles, key=lambda profile: profile.step_s)
    typical = ordered[n_outer : len(ordered) - n_outer]

    def mean(values: Iterable[float | None]) -> float | None:
        known = [value for value in values if value is not None]
        return statistics.fmean(known) if known else None

    by_variable = {
        name: VariableTimes(
            needed_s=mean(profile.variables[name].needed_s for profile in typical),
            ready_s=mean(profile.variables[name].ready_s for profile in typical),
            update_s=statistics.fmean(profile.variables[name].update_s for profile in typical),
        )
        for name in typical[0].variables
    }
    rows = set.intersection(*(set(profile.rows) for profile in typical))
    return replace(
        typical[0],
        compute_s=statistics.fmean(profile.compute_s for profile in typical),
        update_s=statistics.fmean(profile.update_s for profile in typical),
        variables=by_variable,
        rows={name: statistics.fmean(profile.rows[name] for profile in typical) for name in rows},
    )


def _known(spans: Mapping[str, Sequence[Span]], names: Iterable[str]) -> list[Span]:
    return [span for name in names for span in spans.get(name, ())]


class _Clock:
    """Clock that runs only while at least one of some operations runs."""

    def __init__(self, spans: Sequence[Span]) -> None:
        self._starts_s: list[float] = []
        self._ends_s: list[float] = []
        for start_s, end_s in sorted(spans):
            if self._ends_s and start_s <= self._ends_s[-1]:
                self._ends_s[-1] = max(self._ends_s[-1], end_s)
            else:
                self._starts_s.append(start_s)
                self._ends_s.append(end_s)
        lengths_s = [end_s - start_s for start_s, end_s in zip(self._starts_s, self._ends_s, strict=True)]
        self._before_s = [0.0, *accumulate(lengths_s)]

    @property
    def total_s(self) -> float:
        return self._before_s[-1]

    def until(self, moment_s: float) -> float:
        """Seconds that the clock shows at a moment."""
        number = bisect.bisect_right(self._starts_s, moment_s) - 1
        if number < 0:
            return 0.0
        running_s = min(moment_s, self._ends_s[number]) - self._starts_s[number]
        return self._before_s[number] + running_s
