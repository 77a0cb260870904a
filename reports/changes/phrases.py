"""Phrases of a comparison of two runs: verdicts, their reasons, and lines about all cases."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from harness.records.comparison import MIN_REPEATS_INTERVAL

Verdict = Literal["faster", "slower", "same", "cannot-tell", "not-comparable"]
VERDICTS: Mapping[Verdict, str] = {
    "faster": "faster",
    "slower": "slower",
    "same": "the same",
    "cannot-tell": "undecided",
    "not-comparable": "not comparable",
}
BROKEN: Final = "broken"
SENDS_MORE: Final = "sending more"

# Reasons of a case.
ONLY_EARLIER: Final = "only in the earlier run"
ONLY_LATER: Final = "only in the later run"
NO_RESULT: Final = "no result: {error}"
NO_RESULT_ANY_MORE: Final = "no result any more: {error}"
INCORRECT: Final = "correctness changed: {before} before, now {after}"
COMPARED_ANYWAY: Final = "compared although {difference}"
TIMED_UNIT: Final = "timed by {before}, now by {after}; repeat the run of the older version"
NO_INTERVAL: Final = f"no interval: both runs need {MIN_REPEATS_INTERVAL} repeats"
WIDE_INTERVAL: Final = "the interval reaches beyond the threshold; more repeats would decide"
BASELINE: Final = "baseline of the ratios; a slower machine would look the same as a slower baseline"
RATIOS_MOVED: Final = (
    "{n_moved} of {n} ratios to it changed alike, about {factor}: either they changed or the baseline did"
)

# Notes on a case.
MARK_CHANGED: Final = "mark: {before} before, now {after}"
BYTES_CHANGED: Final = "{layer} per step: {before} before, now {after}"
FROM_NONE: Final = "{bytes}, none before"
DIFFERS: Final = "{fact}: {before}, now {after}"
EDITED: Final = "{file} was edited"

# Lines about all cases.
NO_CASES: Final = "No case is in either run."
COUNTS: Final = "{n} case{s}: {counts}."
NOTHING_COMPARABLE: Final = " Nothing can be compared."
OTHER_WORKLOAD: Final = "{workload} has changed ({facts}): its cases are compared by examples/s."
UNKNOWN_WORKLOAD: Final = "{workload} may have changed: one run did not record {facts}."
LARGEST_SLOWDOWN: Final = "An undecided case may be up to {percent} % slower."
GEOMETRIC_MEAN: Final = (
    "Examples/s of unchanged workloads: {times} of before (geometric mean). Machine load has the same effect."
)
CAPTION: Final = "{after} compared with {before}; changes up to {percent} % count as the same"
DIFFERENCES: Final = "Differences in code and machine:"
