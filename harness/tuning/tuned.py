"""Tuned plan: what was tried and what came of it, and the plan's file with a note of that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from harness.atomic_files import why_not_writable, write_json
from harness.canonical import JsonValue
from harness.cluster import other_keys
from harness.errors import UsageError
from harness.experiment.references import StrategyRef

if TYPE_CHECKING:
    from harness.experiment.cases import Case
    from strategies.plan.schema import Plan


TUNED_PLAN = "tuned.plan.json"


class Outcome(StrEnum):
    """What became of a candidate; the first is the best that may."""

    CHOSEN = "chosen"
    NOT_FASTER = "not faster"
    DROPPED = "dropped"
    NOT_TRIED = "not tried"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Tried:
    """A candidate beside the default.

    Attributes:
        ratio: its rate ÷ the default's, over the repeats that decide about it; None where it has none.
        interval: of 95 % of such runs, its lower and upper limit; None of fewer than three repeats.
        why: it failed.
    """

    strategy: StrategyRef
    outcome: Outcome
    ratio: float | None = None
    interval: tuple[float, float] | None = None
    n_repeats: int = 0
    why: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuned:
    """The plan to take, and how it was found.

    Attributes:
        case: of the plan; the default's unless a candidate was faster.
        seconds: that there were for it. seed: of draws and orders.
        path: of the plan's file.
    """

    plan: Plan
    case: Case
    default: StrategyRef
    tried: Sequence[Tried]
    seconds: float
    seed: int
    run_dir: Path
    path: Path
    is_interrupted: bool = False

    @property
    def verdict(self) -> str:
        best = next((each for each in self.tried if each.ratio is not None), None)
        if self.case.strategy != self.default:
            return f"{self.case.strategy} is faster than {self.default}: {figures(self.tried[0])}"
        if not self.tried:
            return f"{self.default} stays: all values of its knobs come to the same plan here"
        if best is None:
            return f"{self.default} stays: no candidate could be measured"
        n_left = sum(each.outcome is Outcome.NOT_TRIED for each in self.tried)
        told = f"{best.strategy} at {figures(best)}"
        told += f"; there was no time for {n_left} of {len(self.tried)}" if n_left else ""
        if best.outcome is Outcome.NOT_FASTER:
            return f"{self.default} stays: the best candidate is not faster beyond noise, {told}"
        if best.ratio is not None and best.ratio > 1:
            return f"{self.default} stays: no candidate was confirmed to be faster, the best so far is {told}"
        return f"{self.default} stays: no candidate that was tried is faster, the best is {told}"

    def to_document(self) -> dict[str, JsonValue]:
        shape = self.case.shape
        return {
            "workload": str(self.case.workload),
            "strategy": str(self.case.strategy),
            "default": str(self.default),
            "verdict": self.verdict,
            "provider": shape.provider,
            "workers": shape.workers,
            "replicas": shape.replicas_per_worker,
            "link": {"rate_mbit": shape.rate_mbit, **other_keys(shape.burst_kb, shape.worker_links)},
            "seconds": self.seconds,
            "seed": self.seed,
            "interrupted": self.is_interrupted,
            "run_dir": str(self.run_dir),
            "candidates": [_document(each) for each in self.tried],
        }

    def write(self) -> None:
        write_json(self.path, {**self.plan.model_dump(mode="json"), "tuning": self.to_document()})


def figures(tried: Tried) -> str:
    """A ratio with its interval, in words."""
    if tried.ratio is None:
        return "-"
    ratio = f"{tried.ratio:.3g}×"
    if tried.interval is None:
        return f"{ratio} (n={tried.n_repeats})"
    return f"{ratio} ({tried.interval[0]:.3g} to {tried.interval[1]:.3g}, n={tried.n_repeats})"


def require_writable(path: Path) -> None:
    """Look whether a plan's file can be written, before anything is measured for it.

    Raises:
        UsageError: it cannot.
    """
    why = why_not_writable(path)
    if why is not None:
        raise UsageError(f"must be a file that can be written, got {path}: {why}; name another", field="out")


def _document(tried: Tried) -> JsonValue:
    return {
        "strategy": str(tried.strategy),
        "outcome": tried.outcome.value,
        "ratio": tried.ratio,
        "interval": None if tried.interval is None else {"low": tried.interval[0], "high": tried.interval[1]},
        "n": tried.n_repeats,
        "why": tried.why,
    }
