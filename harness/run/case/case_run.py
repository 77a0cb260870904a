"""What one repeat of a case is to do, and what it has shown."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.equivalence.reference_outcome import Reference
from harness.equivalence.yardstick import Array
from harness.measure.collector import Measurement
from harness.measure.traced_repeat import Traced
from harness.records.facts.costs import ObserverEffect
from harness.records.facts.links import MeasuredLink
from harness.records.facts.outcome import Equivalence
from harness.records.facts.resharding import Resharding
from harness.records.facts.robustness import Aggregated, Evaluation
from harness.records.facts.rounds import Rounds
from harness.run.case.ready import PreparedCase
from harness.worker.jobs.training import Opened


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseRun:
    """What running a case once has shown.

    Attributes:
        opened: what each worker's program cost.
        notes: what updates took and dropped, where not all wait for all; why the case was run again.
        variable_bytes: in each worker's memory, slots included, as the workers' own tables tell.
        codec_s: see `harness.worker.jobs.after_repeats`, of the slowest worker; None without
            a compressor.
        saved_step: number of steps before the checkpoint that was written; None if none was.
        observer: what measuring takes, by windows after all of that; None where nobody asked.
        traced: a step after all of that; None where none was asked for.
        links: what the workers' links carried before all of it; None where none is limited.
        rounds: what its windows came to beside those of others.
        resharding: of variables around host loops; None where nothing lies in parts.
        aggregation: of gradients by a rule; None where they are added up.
        values: of variables after the last step, by name; None where nobody asked how good the model is.
        evaluation: what that came to.
        start_s, check_s, warmup_s: see `Preparation`.
    """

    measurement: Measurement
    opened: tuple[Opened, ...]
    equivalence: Equivalence | None
    variable_bytes: tuple[int, ...] | None = None
    notes: tuple[str, ...] = ()
    codec_s: float | None = None
    saved_step: int | None = None
    observer: ObserverEffect | None = None
    traced: Traced | None = None
    links: tuple[MeasuredLink, ...] | None = None
    rounds: Rounds | None = None
    resharding: Resharding | None = None
    aggregation: Aggregated | None = None
    values: Mapping[str, Array] | None = None
    evaluation: Evaluation | None = None
    start_s: float = 0.0
    check_s: float | None = None
    warmup_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """What one repeat of a case is to do.

    Attributes:
        reference: what to check the real workers' state against first; None checks nothing.
        number: of the repeat, to note with the check.
        checkpoint: folder for the state after the last step; None saves none.
    """

    prepared: PreparedCase
    reference: Reference | None
    number: int
    checkpoint: Path | None = None
