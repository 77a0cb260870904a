"""How a case's rate compares with the baseline's, as far as the repeats that have ended tell."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from harness.experiment.cases import Case
from harness.experiment.model import Experiment
from harness.experiment.schedule import baseline_of
from harness.records.comparing.common_rounds import paired_ratios
from harness.records.comparing.student_interval import CONFIDENCE, SEQUENTIAL_CONFIDENCE
from harness.records.record import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class RatioSoFar:
    """A case's rate in multiples of the baseline's.

    Attributes:
        interval: of 95 % of such runs, its lower and upper limit; None of fewer than three repeats.
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
    """The ratio of a case; None of the baseline itself, and where the two were not timed in turn.

    Until the baseline has its first record, its batch is not known, and there is no ratio either.

    Args:
        cases: all of the run.
        records: of the run so far.
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
