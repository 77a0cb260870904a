"""Page of predictions: scaling curves of all strategies by workload and link, tables, and simulated steps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from harness.records.conditions import AS_WRITTEN, BatchRule, global_examples
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


class _Key(NamedTuple):
    """Conditions of a section."""

    workload: str
    requested_batch: int
    link_mbit: float | None
    fault_texts: tuple[str, ...]
    cores: float | None


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
    bound = [p for p in predictions if p.competes and not p.is_single]
    others = [p for p in predictions if p.workload not in {p.workload for p in bound}]
    keys = dict.fromkeys(map(_key, (*bound, *others)))
    has_several_cores = len({key.cores for key in keys}) > 1
    has_several_batches = len({(key.workload, key.requested_batch) for key in keys}) > len(
        {key.workload for key in keys}
    )
    for number, key in enumerate(keys):
        own = [p for p in predictions if _belongs(p, key)]
        beside = [comparison for comparison in measured if _is_measured(comparison, key, own[0].batch_rule)]
        batch = f"batch {count(key.requested_batch)}" * has_several_batches
        cores = f"cores per worker: {key.cores or 'of the probe'}" * has_several_cores
        yield _Section(
            id=f"prediction-{number}",
            title=key.workload,
            shape=", ".join(
                filter(None, (f"links: {link_rate(key.link_mbit)}", batch, cores, *key.fault_texts))
            ),
            chart=charts.add(f"prediction-{number}-scaling", predicted_scaling(own, beside)),
            table=_table(own),
        )


def _key(prediction: StoredPrediction) -> _Key:
    return _Key(
        prediction.workload,
        prediction.requested_batch,
        prediction.link_mbit,
        prediction.fault_texts,
        prediction.cores_per_worker,
    )


def _belongs(prediction: StoredPrediction, key: _Key) -> bool:
    """True for a prediction under a section's conditions; links and faults do not change `single`."""
    own = _key(prediction)
    if prediction.is_single:
        own = own._replace(link_mbit=key.link_mbit)
    if not prediction.competes or prediction.is_single:
        own = own._replace(fault_texts=key.fault_texts)
    return own == key


def _is_measured(comparison: Comparison, key: _Key, rule: BatchRule) -> bool:
    """True for a comparison under the conditions of a section, on any number of workers."""
    precision = "" if comparison.precision == AS_WRITTEN else comparison.precision
    computation = (precision, "XLA" * comparison.xla, "TF32 off" * (comparison.tf32 is False))
    title = " ".join(filter(None, (comparison.workload, *computation)))
    return (
        (title, comparison.link_requested_mbit, comparison.faults)
        == (key.workload, key.link_mbit, key.fault_texts)
        and comparison.replicas == 1
        and comparison.batch_size == global_examples(key.requested_batch, rule, comparison.workers)
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
        title = (
            f"{predicted.workload}: {predicted.strategy} on {predicted.workers} workers",
            f"links: {link_rate(predicted.link_mbit)}",
            "as measured" if predicted.case else "",
            "beside a traced step" if traced else "",
        )
        yield _Step(
            strategy=predicted.strategy,
            title=", ".join(filter(None, title)),
            chart=charts.add(f"step-{number}", timeline(predicted, traced)),
        )
