"""Every medium, and that no name or message gets through its escaping."""

from __future__ import annotations

import base64
import csv
import dataclasses
import gzip
import hashlib
import io
import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import escape
from page_parts import Page
from synthetic_run import FORMULA, MARKDOWN, SCRIPT, SINGLE, Case, full_cases, write_run

import reports
from harness.records.outcome import Failure
from reports.compare import build
from reports.load import load
from reports.pages.data import COLUMN_NAMES, csv_cell
from reports.pages.markdown import markdown_text
from reports.pages.markup import prose
from reports.tables.figures import cost_table, speed_table, step_table


@pytest.fixture(scope="session")
def html(full_run: Path) -> str:
    return reports.render([full_run], "html")


@pytest.fixture(scope="session")
def page(html: str) -> Page:
    return Page(html)


def test_one_script_runs_and_no_handler_is_set(page: Page) -> None:
    scripts = [attrs for tag, attrs in page.tags if tag == "script"]
    assert scripts == [
        {"type": "application/json", "id": "stratbench-data"},
        {"type": "text/plain", "id": "stratbench-charts"},
        {"type": "text/plain", "id": "stratbench-code"},
        {},
    ]
    assert [name for _, attrs in page.tags for name in attrs if name.startswith("on")] == []
    assert not [
        tag for tag, _ in page.tags if tag in ("img", "iframe", "object", "embed", "link", "base", "form")
    ]


def test_the_page_refers_to_nothing_outside_itself(page: Page, html: str) -> None:
    targets = [
        attrs[name] for _, attrs in page.tags for name in ("href", "src", "xlink:href") if name in attrs
    ]
    assert targets
    assert all(target is not None and target.startswith("#") for target in targets)
    style = html[html.index("<style>") : html.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    policy = [
        attrs["content"] for tag, attrs in page.tags if attrs.get("http-equiv") == "Content-Security-Policy"
    ]
    code = gzip.decompress(base64.b64decode(page.scripts["stratbench-code"]))
    hashes = (hashlib.sha256(source).digest() for source in (page.scripts[""].encode(), code))
    scripts = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in hashes)
    allowed = f"style-src 'unsafe-inline'; img-src data:; script-src {scripts}"
    assert policy == [f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"]


def test_links_within_the_page_lead_somewhere(page: Page) -> None:
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert len(ids) == len(set(ids))
    assert {str(attrs["href"])[1:] for tag, attrs in page.tags if tag == "a"} <= set(ids)
    assert {str(attrs["aria-labelledby"]) for _, attrs in page.tags if "aria-labelledby" in attrs} <= set(ids)


@pytest.mark.parametrize("name", [SCRIPT, FORMULA, MARKDOWN])
def test_nasty_names_are_shown_as_they_are(page: Page, name: str) -> None:
    assert name in page.text


def test_the_embedded_data_is_the_json_report_without_steps(page: Page, full_run: Path) -> None:
    embedded = json.loads(page.scripts["stratbench-data"])
    assert {c["workload"] for c in embedded["comparisons"]} == {case.workload for case in full_cases()}
    assert all("steps" not in row for c in embedded["comparisons"] for row in c["rows"])
    assert embedded["problems"] == json.loads(reports.render([full_run], "json"))["problems"]


def test_every_chart_has_a_name_and_data_to_draw_it_from(page: Page) -> None:
    pictures = [attrs for tag, attrs in page.tags if attrs.get("class") == "picture"]
    assert len(pictures) == len(page.drawn_from["charts"]) > 4 * 4
    assert all(picture["role"] == "img" and picture["aria-label"] for picture in pictures)
    figures = [attrs["data-chart"] for tag, attrs in page.tags if tag == "figure"]
    assert figures == list(page.drawn_from["charts"])


def test_summary_and_verdicts_come_before_tables(page: Page) -> None:
    text = "".join(page.text)
    places = [text.index(part) for part in ("Problems: ", "tie: ", "WINNER: all-reduce", "whole window")]
    assert places == sorted(places)


def test_failures_and_what_was_left_out_are_said(page: Page) -> None:
    text = "".join(page.text)
    assert "worker 1 was killed by signal 9" in text
    assert "needs a GPU, got none" in text
    assert "incomplete: the run ended while writing it" in text


def test_csv_holds_a_line_per_row_and_no_formula(full_run: Path) -> None:
    lines = list(csv.DictReader(io.StringIO(reports.render([full_run], "csv"))))
    assert len(lines) == len({(c.workload, c.strategy, str(c.params)) for c in full_cases()})
    for line in lines:
        for cell in line.values():
            assert not cell.startswith(("=", "+", "@", "\t", "\r")), cell
            assert not cell.startswith("-") or float(cell) < 0
    assert f"'{FORMULA}" in [line["strategy"] for line in lines]
    leader = next(x for x in lines if x["workload"] == "wide-mlp" and x["strategy"] == "all-reduce")
    assert float(leader["ratio_low"]) < float(leader["ratio"]) < float(leader["ratio_high"])
    assert (leader["n"], leader["mark"], leader["rank"]) == ("3", "equivalent", "1")


def test_csv_has_the_same_columns_whatever_ran(full_run: Path, tmp_path: Path) -> None:
    header = reports.render([full_run], "csv").partition("\n")[0]
    assert header == reports.render([write_run(tmp_path / "run", [])], "csv").strip()
    assert len(set(COLUMN_NAMES)) == len(COLUMN_NAMES)


@pytest.mark.parametrize(("column", "place"), [("codec_s", 58), ("notes", 83), ("shape", 104)])
def test_columns_of_csv_keep_their_places(column: str, place: int) -> None:
    assert COLUMN_NAMES.index(column) == place


def test_csv_holds_every_figure_of_rankings_and_costs(full_run: Path) -> None:
    lines = csv.DictReader(io.StringIO(reports.render([full_run], "csv")))
    numbers = {
        (line["workload"], line["strategy"].removeprefix("'")): {
            float(cell) for cell in line.values() if is_number(cell)
        }
        for line in lines
    }
    for comparison in build([load(full_run)]).comparisons:
        for table in (speed_table(comparison), step_table(comparison), cost_table(comparison)):
            for row in table.rows:
                median = numbers[comparison.workload, row[0].text]
                is_baseline = row[0].note == "baseline"
                output = {cell.value for cell in row if cell.value is not None} - (
                    {1.0} if is_baseline else set()
                )
                assert output <= median


def is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def test_every_format_shows_what_records_say(tmp_path: Path) -> None:
    note = "warm-up did not settle within 90 steps"
    path = write_run(tmp_path / "run", [Case(workload="w", strategy="ps", notes=(note,))])
    (line,) = csv.DictReader(io.StringIO(reports.render([path], "csv")))
    assert line["notes"] == note
    assert f"ps: {note}" in reports.render([path], "html")
    assert markdown_text(f"ps: {note}") in reports.render([path], "md")
    assert note in reports.render([path], "json")


def test_code_in_notes_and_messages_is_set_as_code_and_escaped(tmp_path: Path) -> None:
    failure = Failure(type="user-error", message=f"run `make {SCRIPT}` first", stage="capture")
    case = Case(workload="w`x`", strategy="ps", notes=(f"`verify` tells {SCRIPT}, a ` too",))
    path = write_run(tmp_path / "run", [dataclasses.replace(case, problems={1: ("failed", failure)})])
    html = reports.render([path], "html")
    output = html.partition("stratbench-data")[0]
    assert f"ps: <code>verify</code> tells {escape(SCRIPT)}, a ` too" in output
    assert f"run <code>make {escape(SCRIPT)}</code> first" in output
    # A name is no sentence.
    assert "<code>x</code>" not in output
    assert SCRIPT not in html


@given(st.text(alphabet="`a <"))
def test_prose_loses_nothing_but_its_backticks(text: str) -> None:
    output = prose(text)
    assert re.sub("</?code>", "`", output).replace("&lt;", "<") == text
    assert all("`" not in code for code in re.findall("<code>(.*?)</code>", output))


def test_every_format_shows_where_a_traced_step_s_time_went(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", [Case(workload="w", strategy="ps", p50_s=0.01)])
    (line,) = csv.DictReader(io.StringIO(reports.render([path], "csv")))
    assert float(line["traced_compute_s"]) == pytest.approx(0.0045)
    assert float(line["traced_received_bytes"]) == 2000
    (row,) = json.loads(reports.render([path], "json"))["comparisons"][0]["rows"]
    assert row["time_split"]["compute_s"]["value"] == pytest.approx(0.0045)
    text = "45 %, n = 3, all 4.50 ms"
    assert text in "".join(Page(reports.render([path], "html")).text)
    assert markdown_text(text) in reports.render([path], "md")


def test_markdown_tables_are_whole_and_names_inert(full_run: Path) -> None:
    text = reports.render([full_run], "md").replace("<!-- -->", "")
    tables = [block for block in re.split(r"\n\s*\n", text) if block.startswith("|")]
    assert len(tables) == 7 * 4 + 2
    for table in tables:
        assert len({len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) for line in table.splitlines()}) == 1
    ours = {f"<{slash}{name}>" for name in ("details", "summary") for slash in ("", "/")}
    assert {tag + ">" for tag in re.findall(r"(?<!\\)<[^>\n]*", text)} <= ours
    assert not re.search(r"(?<!\\)`", text)
    assert not re.search(r"(?<!\\)\[", text)


def test_json_is_strict_and_complete(full_run: Path) -> None:
    def refuse(token: str) -> None:
        raise AssertionError(token)

    document = json.loads(reports.render([full_run], "json"), parse_constant=refuse)
    assert document["schema"] == 4
    rows = {row["strategy"]: row for row in document["comparisons"][0]["rows"]}
    assert rows["all-reduce"]["rank"] == 1
    assert rows["all-reduce"]["class"] == "exact"
    assert rows["none"]["mark"]["kind"] == "control"
    assert document["left_out"]


def test_junit_has_a_test_for_each_strategy_and_says_what_is_wrong(full_run: Path) -> None:
    root = ET.fromstring(reports.render([full_run], "junit"))
    suites = {suite.get("name", "").partition(" ·")[0]: suite for suite in root}
    wide = {case.get("name"): case for case in suites["wide-mlp"].iter("testcase")}
    assert wide["all-reduce"].find("failure") is None
    assert "examples/s, ✓ equivalent" in wide["all-reduce"].findtext("system-out", "")
    assert float(wide["all-reduce"].get("time", "")) == pytest.approx(0.0362, rel=0.05)
    assert wide["broken-reduce"].find("failure").get("type") == "not-equivalent"  # type: ignore[union-attr]
    words = {case.get("name"): case for case in suites["word-lm"].iter("testcase")}
    assert words["parallax"].find("skipped").get("message") == "needs a GPU, got none; use device: cpu"  # type: ignore[union-attr]
    for suite in root:
        cases = [case for case in suite.iter("testcase") if case.find("error") is not None]
        assert (suite.get("errors"), suite.get("tests")) == (
            str(len(cases)),
            str(len(suite.findall("testcase"))),
        )
    assert SCRIPT in {case.get("name") for case in suites[SCRIPT].iter("testcase")}


def test_a_control_in_junit_is_named_as_one(full_run: Path) -> None:
    root = ET.fromstring(reports.render([full_run], "junit"))
    tests = [case for case in root.iter("testcase") if case.find("properties") is not None]
    assert {case.get("name") for case in tests} == {"none"}
    assert len(tests) == 3
    for control in tests:
        (stated,) = control.findall("properties/property")
        assert stated.get("name") == "control"
        assert "no communication" in stated.get("value", "")
        assert f"control, not ranked: {stated.get('value')}" in control.findtext("system-out", "")
        assert control.find("failure") is None


def test_junit_says_what_xml_cannot(tmp_path: Path) -> None:
    nasty = "a\x00\x1b[2J\ud800]]>&b"
    path = write_run(
        tmp_path / "run", [Case(workload="w", strategy="ps", notes=(nasty.replace("\ud800", ""),))]
    )
    root = ET.fromstring(reports.render([path], "junit"))
    assert "a\\x00\\x1b[2J]]>&b" in "".join(root.itertext())


@pytest.mark.parametrize("medium", reports.FORMATS)
def test_every_format_copes_with_an_empty_run(tmp_path: Path, medium: str) -> None:
    assert reports.render([write_run(tmp_path / "run", [])], medium)


@pytest.mark.parametrize("medium", reports.FORMATS)
def test_every_format_copes_with_failures_only(tmp_path: Path, medium: str) -> None:
    cases = [Case(workload="w", strategy="ps", problems={0: ("failed", None)}), Case(workload="w", **SINGLE)]
    text = reports.render([write_run(tmp_path / "run", cases, n_repeats=1)], medium)
    assert "ps" in text


@pytest.mark.parametrize("medium", reports.FORMATS)
def test_the_same_run_makes_the_same_report(full_run: Path, medium: str) -> None:
    assert reports.render([full_run], medium) == reports.render([full_run], medium)


def test_unusable_requests_cost_one_line(full_run: Path) -> None:
    with pytest.raises(
        reports.ReportError, match="format: must be one of html, md, csv, json, junit, got 'pdf'"
    ):
        reports.render([full_run], "pdf")
    with pytest.raises(reports.ReportError, match="at least one run folder"):
        reports.render([])


@given(st.text())
def test_no_text_becomes_a_formula(text: str) -> None:
    cell = csv_cell(text)
    assert isinstance(cell, str)
    assert not cell.lstrip().startswith(("=", "+", "-", "@"))
    assert cell.removeprefix("'") in (text, text.removeprefix("'"))


@given(st.text())
def test_no_text_breaks_a_markdown_table(text: str) -> None:
    output = markdown_text(text).replace("<!-- -->", "")
    assert "\n" not in output
    assert not re.search(r"(?<!\\)(?:\\\\)*[|<`]", output.replace("\\\\", ""))


@pytest.mark.parametrize("number", [0, -1.5, 3, None, True])
def test_numbers_stay_numbers_in_csv(number: object) -> None:
    assert csv_cell(number) is number


def test_the_baseline_is_offered_first_however_many_are_faster(tmp_path: Path) -> None:
    cases = [Case(workload="w", p50_s=0.9, **SINGLE)]
    cases += [Case(workload="w", strategy=f"s{i}", p50_s=0.01 + 0.001 * i) for i in range(30)]
    page = Page(reports.render([write_run(tmp_path / "run", cases)], "html"))
    assert next(iter(page.drawn_from["ratios"]["comparison-0"])) == "single"
