"""A page of predictions with measured points, a simulated and a traced step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from synthetic_run import NONE, SCRIPT, SINGLE, Case, write_run

import reports
from harness.records.predictions import (
    PredictedLimits,
    PredictedSpan,
    PredictedTimeline,
    StoredPrediction,
)

CASES = [
    Case(workload="w", **SINGLE),
    Case(workload="w", **NONE),
    Case(workload="w", strategy="all-reduce", p50_s=0.011),
]


def prediction(
    strategy: str,
    workers: int,
    step_s: float,
    *,
    link_mbit: float | None = None,
    sent: float = 1e6,
    **others: Any,
) -> StoredPrediction:
    """Prediction of one strategy."""
    return StoredPrediction(
        workload="w",
        strategy=strategy,
        strategy_params={},
        label=strategy,
        workers=workers,
        replicas=1,
        batch_size=others.pop("batch_size", 64),
        link_mbit=link_mbit,
        step_s=step_s,
        interval=PredictedLimits(low=0.8 * step_s, high=1.25 * step_s),
        examples_per_s=64 / step_s,
        payload_bytes_per_step=sent,
        memory_bytes=1e6,
        limited_by="server",
        extrapolated=("examples per worker",) if workers > 2 else (),
        efficiency=0.5,
        **others,
    )


def page_of(run_dir: Path) -> str:
    """The page, for a run with one measured strategy."""
    path = write_run(run_dir, CASES, n_repeats=3)
    spans = tuple(
        PredictedSpan(
            tasks="workers 0–1", kind=kind, name=f"{kind} 0", start_s=0.002 * i, end_s=0.002 * i + 0.002
        )
        for i, kind in enumerate(("computing", "exchange", "transfer"))
    )
    step = PredictedTimeline(
        workload="w", strategy="all-reduce", workers=2, link_mbit=None, case=None, spans=spans
    )
    steps_s = {2: {"ps": 0.010, "all-reduce": 0.012, SCRIPT: 0.02}, 8: {"ps": 0.030, "all-reduce": 0.015}}
    predictions = [
        prediction(name, workers, step_s, link_mbit=link_mbit)
        for link_mbit in (None, 100.0)
        for workers, own in steps_s.items()
        for name, step_s in own.items()
    ]
    texts = ["fastest, w without a limit: ps from 2 workers, then all-reduce from 8 workers"]
    return reports.prediction_page(predictions, run_dir=path, timelines=[step], texts=texts)
