"""Charts of predictions: rates by number of workers, and simulated steps beside traced ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

from harness.records.predictions import PredictedTimeline, StoredPrediction, fastest_by_workers
from reports.charts.specification import Axis, Bar, Event, Lane, Line, LineChart, TimelineChart
from reports.quantities import link_rate, plain, seconds
from reports.repeat_files.traced_steps import TracedSpan
from reports.rows.report import Comparison

_BARS = {"computing": "compute", "exchange": "exchange", "transfer": "transfer", "wait": "wait"}
"""Kind of a span → kind of its bar."""
_IN_THREAD = ("computing", "exchange")
"""Kinds of spans of the thread that runs a worker's operations."""


def predicted_scaling(predictions: Sequence[StoredPrediction], measured: Iterable[Comparison]) -> LineChart:
    """Predicted rate by number of workers, and measured rates of the same strategies.

    Args:
        predictions: predictions of one workload, link and scenario; and of `single`, on one worker.
        measured: comparisons under the same conditions.
    """
    ordered = sorted(predictions, key=lambda p: p.workers)
    labels = list(dict.fromkeys(p.label for p in ordered))
    singles = {p.label for p in ordered if p.is_single}
    points = [
        (row, 1 if row.strategy in singles else comparison.workers)
        for comparison in measured
        for row in comparison.rows
    ]
    first = next((p for p in ordered if not p.is_single), ordered[0])
    sizes = sorted({float(p.workers) for p in ordered} | {float(n) for _, n in points})
    return LineChart(
        label=f"Predicted examples per second by number of workers on {first.workload}, "
        f"{link_rate(first.link_mbit)}",
        x=Axis(name="workers", unit="number", log=True, ticks=tuple(sizes)),
        y=Axis(name="examples per second", unit="number", log=True),
        lines=(
            *(
                _predicted_line([p for p in ordered if p.label == name], color)
                for color, name in enumerate(labels)
            ),
            *(
                Line(
                    key=row.strategy,
                    name=row.strategy,
                    color=labels.index(row.strategy),
                    kind="points",
                    points=((float(n), row.rate.value),),
                    tips=(f"{row.strategy}, measured on {n} workers: {plain(row.rate.value)} examples/s",),
                )
                for row, n in points
                if row.rate is not None and row.status == "ok" and row.strategy in labels
            ),
        ),
        events=tuple(_changes_of_the_fastest(ordered)),
    )


def _predicted_line(predictions: Sequence[StoredPrediction], color: int) -> Line:
    name = predictions[0].label
    return Line(
        key=name,
        name=name,
        color=color,
        kind="predicted",
        points=tuple((float(p.workers), p.examples_per_s) for p in predictions),
        tips=tuple(
            f"{name}, predicted on {p.workers} workers: {plain(p.examples_per_s)} examples/s, step "
            f"{seconds(p.step_s)}, limited by {p.limited_by}"
            for p in predictions
        ),
        intervals=tuple(
            (float(p.workers), p.batch_size / p.interval.high, p.batch_size / p.interval.low)
            for p in predictions
        ),
    )


def _changes_of_the_fastest(predictions: Sequence[StoredPrediction]) -> Iterator[Event]:
    """Numbers of workers from which another strategy is the fastest."""
    rates = (
        (None if p.is_single else p.workers, p.title, p.examples_per_s) for p in predictions if p.competes
    )
    labels = {p.title: p.label for p in predictions}
    for (_, before), (n_workers, title) in pairwise(fastest_by_workers(rates)):
        yield Event(
            x=float(n_workers), text=f"from {n_workers}: {title}", keys=(labels[before], labels[title])
        )


def timeline(predicted: PredictedTimeline, traced: Sequence[TracedSpan]) -> TimelineChart | None:
    """Simulated step above the traced one; None if nothing takes any time."""
    spans = [
        *((f"predicted, {s.tasks}", s.kind, s.name, s.start_s, s.end_s) for s in predicted.spans),
        *((f"traced, worker {s.worker}", s.kind, s.name, s.start_s, s.end_s) for s in traced),
    ]
    lanes: dict[tuple[str, str], list[Bar]] = {}
    for place, kind, name, start_s, end_s in spans:
        tip = f"{name}: {kind}, {seconds(end_s - start_s)} from {seconds(start_s)}"
        bar = Bar(kind=_BARS[kind], start=start_s, end=end_s, tip=tip)
        lanes.setdefault((place, "thread" if kind in _IN_THREAD else "network"), []).append(bar)
    if not lanes:
        return None
    return TimelineChart(
        label=f"Predicted {'and traced ' if traced else ''}step of {predicted.strategy} on "
        f"{predicted.workload}",
        axis=Axis(name="time from the beginning of the step", unit="seconds"),
        lanes=tuple(
            Lane(key=predicted.strategy, name=f"{place}: {row}", mark="", bars=tuple(bars))
            for (place, row), bars in sorted(
                lanes.items(), key=lambda item: (item[0][0], item[0][1] != "thread")
            )
        ),
    )
