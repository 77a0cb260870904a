"""Page of predictions: curves, measured points, tables, simulated steps, and names that stay text."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from page_parts import Page
from prediction_pages import CASES, page_of, prediction
from synthetic_run import SCRIPT, Case, write_run

import reports
from harness.records.predictions import PredictedSpan, PredictedTimeline, StoredPrediction
from reports.charts.predictions import predicted_scaling, timeline
from reports.load import load
from reports.repeat_files.traced_steps import TracedSpan, traced_spans


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Page:
    return Page(page_of(tmp_path_factory.mktemp("predicted") / "run"))


def test_each_workload_and_link_has_a_chart_and_a_table(page: Page) -> None:
    ids = [attrs.get("id") for _, attrs in page.tags]
    assert {"prediction-0", "prediction-1", "steps", "glossary"} <= set(ids)
    charts = page.drawn_from["charts"]
    assert set(charts) == {"prediction-0-scaling", "prediction-1-scaling", "step-0"}
    kinds = [(line["key"], line["kind"]) for line in charts["prediction-0-scaling"]["lines"]]
    assert kinds == [
        ("ps", "predicted"),
        ("all-reduce", "predicted"),
        (SCRIPT, "predicted"),
        ("all-reduce", "points"),
    ]
    assert {line["kind"] for line in charts["prediction-1-scaling"]["lines"]} == {"predicted"}
    assert any("all-reduce from 8" in text for text in page.text)


def charts_of(predictions: Sequence[StoredPrediction], cases: Sequence[Case], folder: Path) -> list[dict]:
    """Charts of a page: key and kind of each line."""
    path = write_run(folder / "run", list(cases), n_repeats=1)
    page = Page(reports.prediction_page(predictions, run_dir=path, timelines=[], texts=[]))
    return list(page.drawn_from["charts"].values())


def test_points_are_measured_under_the_conditions_of_the_section(tmp_path: Path) -> None:
    same = Case(workload="w", strategy="ps")
    others = [
        replace(same, batch_size=128),
        replace(same, precision="bf16"),
        replace(same, xla=True),
        replace(same, replicas=2),
        replace(same, scenario="late", faults=("worker 1: slow",)),
    ]
    (chart,) = charts_of([prediction("ps", 8, 0.01)], [same, *others], tmp_path)
    assert [line["kind"] for line in chart["lines"]] == ["predicted", "points"]


def test_a_batch_of_each_worker_is_matched_as_such(tmp_path: Path) -> None:
    predictions = [prediction("ps", n, 0.01, batch_size=32 * n, batch_rule="per-replica") for n in (4, 8)]
    cases = [Case(workload="w", strategy="ps", batch_size=size) for size in (64, 128)]
    (chart,) = charts_of(predictions, cases, tmp_path)
    assert [line["kind"] for line in chart["lines"]] == ["predicted", "points"]


def test_batch_sizes_have_sections(tmp_path: Path) -> None:
    predictions = [prediction("ps", n, 0.01, batch_size=size) for size in (32, 64) for n in (4, 8)]
    path = write_run(tmp_path / "run", [Case(workload="w", strategy="ps", batch_size=64)], n_repeats=1)
    page = Page(reports.prediction_page(predictions, run_dir=path, timelines=[], texts=[]))
    kinds = [[line["kind"] for line in chart["lines"]] for chart in page.drawn_from["charts"].values()]
    assert kinds == [["predicted"], ["predicted", "points"]]
    assert {text for text in page.text if "links: no limit" in text} == {
        f"links: no limit, batch {n}" for n in (32, 64)
    }


def test_scenarios_have_sections_and_single_is_in_each_of_them(tmp_path: Path) -> None:
    late = ("worker 1: slow",)
    predictions = [
        prediction("single", 1, 0.02, is_single=True, sent=0.0),
        *(prediction("none", 8, 0.005, link_mbit=rate, sent=0.0) for rate in (None, 100.0)),
        *(
            prediction("ps", 8, 0.01 if rate is None else 0.03, link_mbit=rate, fault_texts=faults)
            for rate in (None, 100.0)
            for faults in ((), late)
        ),
    ]
    charts = charts_of(predictions, [Case(workload="w", strategy="ps", scenario="s", faults=late)], tmp_path)
    keys = [[(line["key"], line["kind"]) for line in chart["lines"]] for chart in charts]
    curves = [("single", "predicted"), ("none", "predicted"), ("ps", "predicted")]
    assert keys == [curves, [*curves, ("ps", "points")], curves, curves]


def test_names_stay_text(page: Page) -> None:
    assert any(SCRIPT in text for text in page.text)
    assert [attrs for tag, attrs in page.tags if tag == "script" and not attrs.get("id")] == [{}]


def test_a_change_of_the_fastest_is_marked() -> None:
    chart = predicted_scaling(
        [
            prediction("ps", 2, 0.01),
            prediction("all-reduce", 2, 0.02),
            prediction("ps", 8, 0.03),
            prediction("all-reduce", 8, 0.02),
            prediction("none", 8, 0.001, sent=0.0),
            prediction("ps", 64, 0.09),
            prediction("single", 1, 0.05, sent=0.0, is_single=True),
        ],
        [],
    )
    assert [(event.x, event.text, event.keys) for event in chart.events] == [
        (8.0, "from 8: all-reduce", ("ps", "all-reduce")),
        (64.0, "from 64: single", ("all-reduce", "single")),
    ]
    reduce = next(line for line in chart.lines if line.key == "all-reduce")
    assert reduce.points == ((2.0, 64 / 0.02), (8.0, 64 / 0.02))
    assert reduce.intervals[0] == pytest.approx((2.0, 64 / 0.025, 64 / 0.016))


def test_a_step_without_spans_has_no_chart() -> None:
    empty = PredictedTimeline(workload="w", strategy="ps", workers=2, link_mbit=None, case=None, spans=())
    assert timeline(empty, ()) is None
    traced = TracedSpan(worker=1, kind="wait", name="2 operations", start_s=0.0, end_s=0.5)
    chart = timeline(empty, [traced])
    assert chart is not None
    assert [lane.name for lane in chart.lanes] == ["traced, worker 1: network"]


def test_a_step_of_a_measured_case_is_titled_so(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", CASES, n_repeats=1)
    span = PredictedSpan(tasks="worker 0", kind="computing", name="c", start_s=0.0, end_s=0.1)
    step = PredictedTimeline(
        workload="w", strategy="ps", workers=2, link_mbit=None, case="case-1", spans=(span,)
    )
    page = Page(reports.prediction_page([prediction("ps", 2, 0.1)], run_dir=path, timelines=[step], texts=[]))
    assert any("w: ps on 2 workers, links: no limit, as measured" in text for text in page.text)


def event(kind: str, ts: float, dur: float, pid: int = 0, name: str = "op", **fields: object) -> dict:
    return {"ph": "X", "name": name, "cat": kind, "pid": pid, "tid": 1, "ts": ts, "dur": dur, **fields}


def traced_in(path: Path, document: object) -> tuple[TracedSpan, ...]:
    run = load(write_run(path / "run", CASES, n_repeats=1))
    record = next(record for record in run.records if record.strategy == "all-reduce")
    file = run.stored.repeat_dir(record) / "trace.json"
    file.write_text(json.dumps(document))
    return traced_spans(run, record.case)


def test_near_events_of_a_worker_are_one_span(tmp_path: Path) -> None:
    events = [
        {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "worker 0"}},
        event("part", 0.0, 1e6),
        event("compute", 0.0, 1e5),
        event("compute", 1e4, 2e4),
        event("host", 1.001e5, 1e5),
        event("compute", 5e5, 1e5, name="last"),
        event("wait", 2e5, 1e5, pid=1),
        event("compute", 0.0, 1e6, pid=9),
    ]
    assert traced_in(tmp_path, {"traceEvents": events}) == (
        TracedSpan(worker=0, kind="computing", name="3 operations", start_s=0.0, end_s=0.2001),
        TracedSpan(worker=0, kind="computing", name="last", start_s=0.5, end_s=0.6),
        TracedSpan(worker=1, kind="wait", name="op", start_s=0.2, end_s=pytest.approx(0.3)),
    )


@pytest.mark.parametrize(
    "document",
    [[], {}, {"traceEvents": [event("compute", 0.0, -1.0)]}, {"traceEvents": [event("compute", "x", 1.0)]}],
)
def test_other_files_are_no_traces(tmp_path: Path, document: object) -> None:
    assert traced_in(tmp_path, document) == ()
