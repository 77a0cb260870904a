"""The Markdown report: what GitHub makes of it, and that it fits into a comment."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token
from synthetic_run import DIED, FORMULA, MARKDOWN, NONE, ONERROR, SCRIPT, SINGLE, Case, write_run

import reports
from harness.records.safe_text import printable
from reports.compare import build
from reports.load import load
from reports.pages.markdown import MOST_CHARACTERS, markdown_text, to_markdown

READER = MarkdownIt("commonmark").enable("table").enable("strikethrough")
# What GitHub looks for in the text of what Markdown has become.
LINKED = re.compile(r"@\w|#\d|\bGH-\d|://|\bwww\.|:[\w+-]+:", re.IGNORECASE)
REFERRING = (
    "@octocat",
    "ps @org/team",
    "#1",
    "owner/repo#12",
    "gh-7",
    "user@0123456789abcdef0123456789abcdef01234567",
    "http://evil.example/a?b=c",
    "https://github.com/owner/repo/issues/1",
    "www.evil.example",
    "someone@mail.example",
    ":tada: :+1:",
    "&#64;octocat &commat;octocat",
    "\\@octocat",
    "`@octocat` <b>@octocat</b>",
    "[x](http://evil.example) ![x](y)",
    "<!-- --> --> <!-- @a",
)


def inline(text: str) -> list[Token]:
    """Pieces of a paragraph of Markdown."""
    return [piece for token in READER.parse(text) for piece in token.children or ()]


def texts(pieces: list[Token]) -> Iterator[str]:
    """Pieces of text as they are shown; markup between two keeps them apart."""
    return (piece.content for piece in pieces if piece.type == "text")


def visible_text(pieces: list[Token]) -> str:
    assert {piece.type for piece in pieces} <= {"text", "html_inline"}
    assert {piece.content for piece in pieces if piece.type == "html_inline"} <= {"<!-- -->"}
    return "".join(texts(pieces))


@pytest.mark.parametrize("text", [*REFERRING, SCRIPT, FORMULA, MARKDOWN, ONERROR])
def test_text_is_shown_as_it_is_and_refers_to_nothing(text: str) -> None:
    pieces = inline(f"x {markdown_text(text)}")
    assert visible_text(pieces) == f"x {' '.join(printable(text).split())}"
    assert not [text for text in texts(pieces) if LINKED.search(text)]


@given(st.text(alphabet="@#:/.wgh-1a\\&;<!> `*_[]()|~"))
def test_no_text_refers_to_anything(text: str) -> None:
    pieces = inline(f"x{markdown_text(text)}")
    assert visible_text(pieces) == f"x{' '.join(text.split())}"
    assert not [text for text in texts(pieces) if LINKED.search(text)]


def test_a_report_of_hostile_names_refers_to_nothing(tmp_path: Path) -> None:
    cases = [Case(workload=name, strategy=name, notes=(name,)) for name in REFERRING]
    text = reports.render([write_run(tmp_path / "run", cases)], "md")
    for token in READER.parse(text):
        assert token.type != "html_block" or re.fullmatch(
            r"</?details>\n?(<summary>[\w ,:?'-]+</summary>\n)?", token.content
        )
        for piece in token.children or ():
            assert piece.type in ("text", "html_inline", "strong_open", "strong_close")
            assert piece.type != "text" or not LINKED.search(piece.content)


def test_verdict_and_ranking_stand_open_and_all_else_is_folded(full_run: Path) -> None:
    text = reports.render([full_run], "md")
    opened = re.sub(r"<details>.*?</details>", "", text, flags=re.DOTALL)
    assert "<" not in opened.replace("<!-- -->", "").replace("\\<", "")
    headings = [line for line in opened.splitlines() if line.startswith("| strategy |")]
    assert len(headings) == 4
    assert all("| rank | correct | examples/s |" in line for line in headings)
    assert opened.index("WINNER: all-reduce") < opened.index("| strategy |")
    for title in ("Step times", "Traffic", "Provenance", "Left out: 1"):
        assert f"<summary>{title}</summary>" in text
    # Markdown within a folded part needs an empty line before it.
    assert all(text[match.end() : match.end() + 2] == "\n\n" for match in re.finditer("</summary>", text))
    assert "\n\n</details>" in text
    assert "Left out to fit" not in text


def test_warnings_stand_under_the_headline_and_answers_for_other_goals_are_folded(tmp_path: Path) -> None:
    cases = [
        Case(workload="w", p50_s=0.05, price_per_hour=1.0, **SINGLE),
        Case(workload="w", strategy="all-reduce", p50_s=0.01, payload=2e6, price_per_hour=2.0),
        Case(
            workload="w", strategy="ps", p50_s=0.02, price_per_hour=2.0, payload=1e6, warnings=("it is slow",)
        ),
    ]
    report = build([load(write_run(tmp_path / "run", cases))])
    (comparison,) = report.comparisons
    text = to_markdown(report)
    table = text.index("| strategy |")
    assert text.index("## w") < text.index("**WINNER: all-reduce, ") < table
    for answer in comparison.verdict.answers[1:]:
        assert text.count(markdown_text(answer.text)) == 1
        assert text.index(markdown_text(answer.text)) > table
    assert [answer.goal for answer in comparison.verdict.answers] == ["fastest", "cheapest", "network"]
    (warning,) = [line for line in text.splitlines() if "it is slow" in line]
    assert text.index("## w") < text.index(warning) < table


def test_marks_and_ranks_are_explained_once(full_run: Path) -> None:
    text = reports.render([full_run], "md")
    assert text.count("Correct: ") == 1
    assert text.index("Correct: ") < text.index("| rank | correct |")


def test_facts_that_nothing_is_known_of_are_not_listed(tmp_path: Path) -> None:
    run = load(write_run(tmp_path / "run", [Case(workload="w", strategy="ps", scenario="")]))
    (origin,) = build([run]).origins
    assert [name for name, value in origin.facts if not value] == []
    (record, *_) = run.records
    assert record.method is not None
    assert record.method.scenario == ""


def many_cases(n_workloads: int) -> list[Case]:
    return [
        case
        for i in range(n_workloads)
        for case in (
            Case(workload=f"w{i}", **SINGLE),
            Case(workload=f"w{i}", **NONE),
            Case(workload=f"w{i}", strategy="ps", problems={1: ("failed", DIED)}),
            Case(workload=f"w{i}", strategy="all-reduce"),
        )
    ]


@pytest.mark.parametrize("n_workloads", [12, 20])
def test_a_large_report_fits_into_a_comment_and_says_what_is_missing(
    tmp_path: Path, n_workloads: int
) -> None:
    text = reports.render([write_run(tmp_path / "run", many_cases(n_workloads))], "md")
    assert 20_000 < len(text) <= MOST_CHARACTERS
    last = text.splitlines()[-1]
    assert last.startswith("Left out to fit into a GitHub comment: memory and cost")
    assert "stratbench report RUN_DIR --format html" in last
    assert "CPU time of a step" not in text
    for i in range(n_workloads):
        assert re.search(rf"## w{i}\n\n.*\n\n\*\*.*\*\*\n\n\| strategy \| rank", text)


def test_less_important_tables_go_first(tmp_path: Path) -> None:
    report = build([load(write_run(tmp_path / "run", many_cases(2)))])
    whole = to_markdown(report, most=1_000_000)
    kinds = {
        "ranking": "| rank |",
        "reasons": "2 of 3 repeats have a result",
        "bytes": "payload predicted",
        "costs": "CPU time",
    }
    missing_at = {}
    for most in range(len(whole) + 2_000, 1_500, -250):
        text = to_markdown(report, most=most)
        assert len(text) <= most
        for kind, sign in kinds.items():
            if sign not in text:
                missing_at.setdefault(kind, most)
    assert all(sign in whole for sign in kinds.values())
    assert missing_at["costs"] > missing_at["bytes"] > missing_at["reasons"] > missing_at["ranking"]


def test_names_without_end_fit_too(tmp_path: Path) -> None:
    cases = [Case(workload="w" * 40_000 + str(i), strategy="@" * 30_000) for i in range(40)]
    text = reports.render([write_run(tmp_path / "run", cases, n_repeats=1)], "md")
    assert len(text) <= MOST_CHARACTERS
    assert "verdicts" in text.splitlines()[-1]
    assert len(text.encode()) < 2**20
