"""A report and its comparisons, as plain frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from reports.rows.advice import Advice
from reports.rows.curves import NO_CURVES, BatchRule, Curves, LinkSensitivity, Scaling
from reports.rows.evidence import Mean
from reports.rows.faults import FaultMatrix
from reports.rows.row import Problem, Row
from reports.statistics import Ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class LeftOut:
    """Something that the report could not use: where it stands, and why.

    Attributes:
        is_damage: whether a file is not as it was written, or is gone.
    """

    where: str
    why: str
    is_damage: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """All strategies on one workload and cluster shape; `rows` are ranked, the unranked last.

    `other_baselines`: strategy → ratios of the others to it, for those that a reader may choose instead.
    `replicas_on_gpus`: replicas on each GPU where some share one, otherwise empty.
    """

    run: str
    workload: str
    shape: str
    provider: str
    device: str
    workers: int
    replicas: int
    batch_size: int | None
    batch_rule: BatchRule | None
    link_requested_mbit: float | None
    link_measured_mbit: Mean | None
    precision: str
    xla: bool
    tf32: bool | None
    scenario: str
    faults: tuple[str, ...]
    baseline: str | None
    rows: tuple[Row, ...]
    verdict: Advice
    notes: tuple[str, ...]
    replicas_on_gpus: tuple[int, ...] = ()
    other_baselines: Mapping[str, Mapping[str, Ratio]] = field(default_factory=dict)
    curves: Curves = NO_CURVES


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What ran where: one run's name and that of its folder, its facts and its resolved experiment."""

    run: str
    folder: str
    facts: tuple[tuple[str, str], ...]
    experiment: Mapping[str, object]


@dataclass(frozen=True, slots=True, kw_only=True)
class FactValue:
    """What a fact is in `n_records` of a run's records; None where it is one of the run as a whole."""

    text: str
    n_records: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class FactDifference:
    """A fact that is not the same in all runs of a report, or in all records of one.

    `values`: for each run in the report's order those that it has there, the commonest first.
    """

    fact: str
    values: tuple[tuple[FactValue, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """Everything a report says; `hints` are what else a reader may want to ask of the same runs."""

    title: str
    comparisons: tuple[Comparison, ...]
    fault_matrices: tuple[FaultMatrix, ...]
    scaling: tuple[Scaling, ...]
    link_sensitivity: tuple[LinkSensitivity, ...]
    problems: tuple[Problem, ...]
    left_out: tuple[LeftOut, ...]
    origins: tuple[Origin, ...]
    differences: tuple[FactDifference, ...] = ()
    hints: tuple[str, ...] = ()

    def run_in_words(self, run: str) -> str:
        """A run as its readers know it: by its folder, and by its own name; empty where there is no other."""
        if len(self.origins) < 2:
            return ""
        folders = {origin.folder for origin in self.origins if origin.run == run}
        # Copies of one run have its name in several folders.
        folder = folders.pop() if len(folders) == 1 else run
        return run if folder in ("", run) else f"{folder} ({run})"
