"""What strategies come to where workers are faulty."""

from __future__ import annotations

from dataclasses import dataclass

from reports.rows.evidence import Mean


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultCell:
    """What a strategy came to in a scenario: a metric after so many steps, or another outcome in a word.

    `void`: more workers are faulty than its rule is for. `note`: what the outcome rests on.
    """

    value: Mean | None
    outcome: str
    step: Mean | None
    void: bool
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultLine:
    """A strategy in all scenarios; a cell is None where it was not run.

    `relative_rate` and `payload_bytes` are without faults, `relative_note` is the rate's interval or why it
    has none. `worst` is the worst of what counts: within its rule's bound, and without faults.
    """

    strategy: str
    cells: tuple[FaultCell | None, ...]
    relative_rate: float | None
    relative_note: str
    worst: float | None
    payload_bytes: float | None
    on_front: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultMatrix:
    """A metric by strategy and scenario, on one workload and cluster shape."""

    run: str
    workload: str
    shape: str
    metric: str
    less_is_better: bool
    baseline: str | None
    scenarios: tuple[tuple[str, tuple[str, ...]], ...]
    lines: tuple[FaultLine, ...]

    @property
    def title(self) -> str:
        """What it is of."""
        return f"{self.metric[:1].upper()}{self.metric[1:]} under faults: {self.workload}"
