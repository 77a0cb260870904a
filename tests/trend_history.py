"""A history for the trend page: hostile names, changes, gaps, a lost case, and a series that has ended."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
from synthetic_run import FORMULA, MARKDOWN, SCRIPT

from reports.history.figures import Figure, Lost, NewNight, Subject
from reports.history.store import reading, writing
from reports.history.trend_page import trend_page
from reports.history.verdicts import SeriesVerdict, verdict_of

LAST = datetime(2026, 11, 26, 2, tzinfo=UTC)
N_NIGHTS = 460
SLOWER_FOR, GAP, ENDED_BEFORE = 9, range(400, 412), 300
"""Nights since the slowdown; nights without a run; how long ago the old lock file went."""
WORKLOADS = ("digits-cnn", SCRIPT)
STRATEGIES = ("single", "ps", "all-reduce", SCRIPT, MARKDOWN)
METRICS = {"ratio": 1.0, "rate": 1200.0, "payload_bytes": 3e6, "peak_rss_bytes": 2e9}


def commits(_verdict: SeriesVerdict) -> Sequence[str]:
    """Subjects of commits are written by whoever commits."""
    return (f"abc1234 {SCRIPT}",)


def write_history(
    store: Path, *, strategies: Sequence[str] = STRATEGIES, n_nights: int = N_NIGHTS, slower: bool = True
) -> Path:
    """Write nights in which `ps` gets slower and needs more memory, and `all-reduce` did so and is known."""
    rng = np.random.default_rng(0)
    with writing(store) as history:
        history.connection.execute("PRAGMA synchronous = OFF")
        for night in range(n_nights):
            ago = n_nights - 1 - night
            if night in GAP:
                continue
            figures = [
                figure(
                    workload,
                    strategy,
                    metric,
                    _effect(workload, strategy, metric, ago if slower else 99),
                    rng,
                )
                for workload in WORKLOADS
                for strategy in strategies
                for metric in METRICS
            ]
            if ago >= ENDED_BEFORE:
                figures.append(figure("digits-cnn", "ps", "rate", 0.9, rng, lock_hash="older"))
            lost = [
                Lost(case="c", workload=SCRIPT, shape="2", strategy=FORMULA, status="failed", message=SCRIPT)
            ]
            history.add(
                NewNight(
                    figures=figures,
                    lost=lost if ago == 0 else [],
                    started_utc=(LAST - timedelta(days=ago)).isoformat(),
                    experiment=SCRIPT,
                    run=f"run-{night}",
                    run_dir="",
                    git_sha=f"{night:040x}",
                )
            )
        history.acknowledge("digits-cnn all-reduce", until=history.nights()[-1], reason=SCRIPT)
    return store


def _effect(workload: str, strategy: str, metric: str, ago: int) -> float:
    if workload != "digits-cnn" or ago >= SLOWER_FOR:
        return 1.0
    return {("ps", "ratio"): 0.8, ("ps", "peak_rss_bytes"): 1.3, ("all-reduce", "ratio"): 0.85}.get(
        (strategy, metric), 1.0
    )


def figure(
    workload: str,
    strategy: str,
    metric: str,
    effect: float,
    rng: np.random.Generator,
    lock_hash: str = "lock",
) -> Figure:
    """A figure of a night, with a percent of noise."""
    subject = Subject(
        case=f"{workload}-{strategy}",
        workload=workload,
        shape="2 workers",
        strategy=strategy,
        comparison_key="machine",
        lock_hash=lock_hash,
        metric=metric,
        against="single" if metric == "ratio" else "",
    )
    value = METRICS[metric] * effect * float(np.exp(rng.normal(0, 0.01)))
    return Figure(subject=subject, value=value, error=None, n=3)


def page_of(store: Path, night: str | None = None) -> str:
    """The trend page of a night, the last unless named."""
    with reading(store) as history:
        nights = history.nights()
        match = next((item for item in nights if item.name == night), nights[-1])
        return trend_page(history, verdict_of(history, match), commits)
