"""JUnit XML: each strategy of a comparison as a test."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

from reports.marks import mark_words
from reports.quantities import interval_of, plain, seconds, times
from reports.rows.report import Comparison, Report
from reports.rows.row import Row

_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 excludes (section 2.2)."""
_WRONG = ("not-equivalent", "beyond-bound")


def to_junit(report: Report) -> str:
    """Suite for each comparison; a test fails if its strategy failed or is not equivalent.

    A test's time is that of its median step. A control passes, with a property that names it.
    """
    suites = ET.Element("testsuites", name=_xml_text(report.title))
    for comparison in report.comparisons:
        suites.append(_suite(comparison, names_run=len(report.origins) > 1))
    ET.indent(suites)
    return ET.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def _suite(comparison: Comparison, *, names_run: bool) -> ET.Element:
    # Collectors merge tests of one name.
    run = f" · run {comparison.run}" if names_run else ""
    where = _xml_text(f"{comparison.workload} · {comparison.shape}{run}")
    cases = [_case(comparison, row, where) for row in comparison.rows]
    suite = ET.Element(
        "testsuite",
        name=where,
        tests=str(len(cases)),
        failures=str(sum(case.find("failure") is not None for case in cases)),
        errors=str(sum(case.find("error") is not None for case in cases)),
        skipped=str(sum(case.find("skipped") is not None for case in cases)),
    )
    suite.extend(cases)
    output = ET.SubElement(suite, "system-out")
    verdict = comparison.verdict
    output.text = _xml_text("\n".join((verdict.headline, *verdict.details, *comparison.notes)))
    return suite


def _case(comparison: Comparison, row: Row, where: str) -> ET.Element:
    case = ET.Element("testcase", classname=where, name=_xml_text(row.strategy), time=_time(row))
    problem = row.problems[0] if row.problems else None
    if row.mark.kind == "control":
        properties = ET.SubElement(case, "properties")
        ET.SubElement(properties, "property", name="control", value=_xml_text(row.mark.explanation))
    if row.status == "skipped":
        ET.SubElement(case, "skipped", message=_xml_text(problem.message if problem else "skipped"))
    elif row.status != "ok":
        kind = _xml_text(problem.type if problem else row.status)
        message = problem.message if problem else row.status
        ET.SubElement(case, "error", type=kind, message=_xml_text(message))
    elif row.mark.kind in _WRONG:
        ET.SubElement(case, "failure", type=row.mark.kind, message=_xml_text(row.mark.explanation))
    if row.rate is not None:
        output = ET.SubElement(case, "system-out")
        output.text = _xml_text("\n".join(_figures(comparison, row)))
    return case


def _figures(comparison: Comparison, row: Row) -> list[str]:
    assert row.rate is not None
    lines = [f"{plain(row.rate.value)} examples/s, {mark_words(row)}"]
    if row.mark.kind == "control":
        lines.append(f"control, not ranked: {row.mark.explanation}")
    if row.p50_s is not None:
        lines.append(f"median step {seconds(row.p50_s.value)}")
    if row.ratio is not None:
        lines.append(f"{times(row.ratio.value)} {comparison.baseline} ({interval_of(row.ratio)})")
    return lines


def _time(row: Row) -> str:
    return f"{row.p50_s.value:.9f}" if row.p50_s is not None else "0"


def _xml_text(text: str) -> str:
    return _NO_XML.sub(lambda match: match[0].encode("unicode_escape", "surrogatepass").decode(), text)
