"""Page of predictions: curves, measured points, tables, simulated steps, and names that stay text."""

import json
from pathlib import Path

import pytest
from page_parts import Page
from prediction_pages import CASES, page_of, prediction
from synthetic_run import SCRIPT, write_run

from harness.records.predictions import PredictedTimeline
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
        ],
        [],
    )
    assert [(event.x, event.text, event.keys) for event in chart.events] == [
        (8.0, "from 8: all-reduce", ("ps", "all-reduce"))
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
