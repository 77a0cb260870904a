"""Phrases of a night: names of metrics and states, causes, changes, and lines about all series."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal

from reports.history.change_points import EARLY_NIGHTS, LEAST_NIGHTS

State = Literal["ok", "pending", "regressed", "improved", "drifting", "new", "missed", "known"]
METRICS: Final[Mapping[str, str]] = {
    "ratio": "throughput ratio",
    "rate": "examples per second",
    "payload_bytes": "payload per step",
    "tcp_bytes": "TCP bytes per step",
    "peak_rss_bytes": "peak memory",
    "seconds": "median time",
}
"""Metric → name in a sentence."""
STATES: Final[Mapping[State, str]] = {
    "regressed": "Regressed since {since}: {cause}",
    "pending": "Pending: needs more nights",
    "drifting": "Drifting: moves a little every night",
    "improved": "Improved",
    "known": "Known regressions",
    "missed": "No figure this night",
    "new": "New series: {reason}",
    "ok": "Unchanged",
}
"""State → headline of its series, the most urgent first."""
WRONG: Final = "Wrong results"
FAILED: Final = "Failed or skipped cases"

# Causes of regressions that began together.
MACHINE: Final = "all cases (the machine or shared code): most rates changed, no ratio did"
ALL_CASES: Final = "all cases (the machine or shared code)"
ONE_CASE: Final = "{strategy} on {workload}"
ONE_STRATEGY: Final = "strategy {strategy}, on {n_workloads} workloads"
ONE_WORKLOAD: Final = "workload {workload}, with {n_strategies} strategies"
SEVERAL: Final = "{n_strategies} strategies on {n_workloads} workloads"

# The verdict in one line.
VERDICT: Final = "{night}: {counts}"
VERDICT_WITH_CAUSES: Final = "{night}: {counts}. {causes}"
NO_SERIES: Final = "no series"
WITHOUT_FIGURE: Final = "{n} without a figure"
CAUSE: Final = "{cause}: {changes} since {since}"
FAILED_CHECK: Final = "{place} is {mark}"
DRIFTS: Final = "{series} drifts: {drift}"
MORE: Final = "{n} more"

# Changes and drifts of a series.
SINCE_COMMIT: Final = "{night}, first with {code}"
CODE: Final = "{name} {commit}"
UNCOMMITTED: Final = "{name} {commit} with uncommitted changes"
CHANGE: Final = "{metric} {factor} ({interval})"
CHANGE_OF_SEVERAL: Final = "{metric} {factor} ({interval}; {first} at first)"
CHANGE_IN_BRIEF: Final = "{metric} {factor}"
MOVED: Final = "{change} since {night}, {n_nights}"
LAST_MEASURED: Final = "last measured on {date}"
DRIFT: Final = "{weekly:+.1f} % a week, {factor} since {night}"

# New series.
TOO_EARLY: Final = "too early for changes"
FEW_NIGHTS: Final = "few nights"
FROM_NIGHT: Final = f"{{nights}} so far; changes are reported from night {EARLY_NIGHTS + 1} on"
OUTLIERS_ONLY: Final = (
    f"{{nights}} so far; before night {LEAST_NIGHTS}, only values beyond all earlier ones are reported"
)
