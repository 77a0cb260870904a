"""Page of predictions: scaling curves of all strategies by workload and link, tables, and simulated steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.records.predictions import PredictedTimeline, StoredPrediction
from reports.charts.in_page import PageChart, PageCharts, packed
from reports.charts.predictions import predicted_scaling, timeline
from reports.load import Run
from reports.pages.markup import template
from reports.quantities import (
    MISSING,
    Cell,
    Table,
    count,
    limits,
    link_rate,
    number_cell,
    percent,
    table_of,
)
from reports.repeat_files.traced_steps import traced_spans
from reports.rows.report import Comparison
from reports.statistics import Interval


@dataclass(frozen=True, slots=True, kw_only=True)
class _Section:
    id: str
    title: str
    shape: str
    chart: PageChart | None
    table: Table


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """Simulated step of a strategy, which may stand beside a traced one."""

    strategy: str
    title: str
    chart: PageChart | None


def prediction_page(
    predictions: Sequence[StoredPrediction],
    *,
    timelines: Sequence[PredictedTimeline],
    texts: Sequence[str],
    run: Run,
    measured: Sequence[Comparison],
) -> str:
    """Predictions as one self-contained page.

    Args:
        timelines: simulated steps.
        texts: sentences above the charts, such as the fastest strategies.
        run: run whose profiles were used, with traces. measured: its comparisons.
    """
    charts = PageCharts()
    sections = list(_sections(predictions, measured, charts))
    steps = list(_steps(timelines, run, charts))
    return template("prediction.html.j2").render(
        run=run.name,
        workloads=", ".join(dict.fromkeys(p.workload for p in predictions)),
        texts=texts,
        sections=sections,
        steps=steps,
        data=None,
        charts=packed(
            {
                "charts": charts.data,
                "noun": "strategies",
                "kinds": {"": {name: [] for name in dict.fromkeys(p.label for p in predictions)}},
                "ratios": {},
            }
        ),
    )


def _sections(
    predictions: Sequence[StoredPrediction], measured: Sequence[Comparison], charts: PageCharts
) -> Iterator[_Section]:
    groups: dict[tuple[str, float | None], list[StoredPrediction]] = {}
    for prediction in predictions:
        groups.setdefault((prediction.workload, prediction.link_mbit), []).append(prediction)
    for number, ((workload, link_mbit), own) in enumerate(groups.items()):
        beside = [
            comparison
            for comparison in measured
            if (comparison.workload, comparison.link_requested_mbit) == (workload, link_mbit)
        ]
        yield _Section(
            id=f"prediction-{number}",
            title=workload,
            shape=f"links: {link_rate(link_mbit)}",
            chart=charts.add(f"prediction-{number}-scaling", predicted_scaling(own, beside)),
            table=_table(own),
        )


def _table(predictions: Sequence[StoredPrediction]) -> Table:
    ordered = sorted(predictions, key=lambda p: (p.workers, p.step_s))
    return table_of(
        "Predicted steps with 95 % intervals. Efficiency: step time without exchanges ÷ predicted step "
        "time. Sent: bytes of all workers. Memory: variables and slots on the worker with the most. "
        "Beyond: more or less than was measured",
        (
            "strategy",
            "workers",
            "examples/s",
            "efficiency",
            "step",
            "sent/step",
            "memory",
            "limited by",
        ),
        [
            (
                Cell(text=p.label),
                Cell(text=count(p.workers), note=f"batch {count(p.batch_size)}", value=p.workers),
                number_cell(p.examples_per_s),
                Cell(text=MISSING if p.efficiency is None else percent(p.efficiency), value=p.efficiency),
                number_cell(p.step_s, "seconds", limits(_interval(p), unit="seconds")),
                number_cell(p.payload_bytes_per_step, "bytes"),
                number_cell(p.memory_bytes, "bytes"),
                Cell(text=p.limited_by, note=_beyond(p)),
            )
            for p in ordered
        ],
        words=("limited by",),
    )


def _interval(prediction: StoredPrediction) -> Interval:
    return Interval(low=prediction.interval.low, high=prediction.interval.high)


def _beyond(prediction: StoredPrediction) -> str:
    beyond = ", ".join(prediction.extrapolated)
    return f"beyond: {beyond}" if beyond else ""


def _steps(timelines: Sequence[PredictedTimeline], run: Run, charts: PageCharts) -> Iterator[_Step]:
    for number, predicted in enumerate(timelines):
        traced = () if predicted.case is None else traced_spans(run, predicted.case)
        yield _Step(
            strategy=predicted.strategy,
            title=f"{predicted.workload}: {predicted.strategy} on {predicted.workers} workers, links: "
            f"{link_rate(predicted.link_mbit)}{', beside a traced step' if traced else ''}",
            chart=charts.add(f"step-{number}", timeline(predicted, traced)),
        )
