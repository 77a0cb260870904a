"""Markdown as GitHub reads it: verdicts and rankings first, other tables folded, within a comment's size."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.records.safe_text import printable
from reports.marks import legend_of
from reports.pages.sections import Drop, head_of, sections_of, top_warnings
from reports.quantities import Cell, Table
from reports.rows.report import Comparison, FaultMatrix, Report
from reports.tables.curves import fault_table, front_line
from reports.tables.figures import speed_table
from reports.tables.placements import difference_table, problem_table
from reports.tables.predictions import residual_table, residuals_text
from reports.tables.summary import summary_table

_NOTHING = "<!-- -->"
"""Separator within text that GitHub would turn into a link. GitHub looks for names after reading Markdown,
so backslashes and entities do not prevent links (github/cmark-gfm, issue 181)."""
_INERT = re.compile(
    # Mentions, issues by number, addresses, and emoji by name.
    r"(?P<link>@(?=\w)|#(?=\d)|\bgh-(?=\d)|:(?=//)|\bwww(?=\.)|:(?=[\w+-]+:))"
    # Underscores within words are none of emphasis.
    r"|[\\`*\[\]<>#|~$&]|(?<![^\W_])_|_(?![^\W_])",
    re.IGNORECASE,
)
_BLOCK_START = re.compile(r"^(\d*)([-+=.)](?=[\s=-]|$))")
"""Start of a line that Markdown reads as a list, a rule or a heading."""


def markdown_text(text: str) -> str:
    """Text on one line that Markdown shows unchanged, and GitHub without mentions or references."""
    escaped = _INERT.sub(_inert, " ".join(printable(text).split()))
    return _BLOCK_START.sub(r"\1\\\2", escaped)


def _inert(match: re.Match[str]) -> str:
    if match["link"]:
        return match[0].replace("#", "\\#") + _NOTHING
    return f"\\{match[0]}"


def markdown_table(table: Table) -> list[str]:
    """Lines of a table with every cell escaped."""
    return [
        "| " + " | ".join(markdown_text(column.name) for column in table.columns) + " |",
        "|" + "|".join(" ---: " if column.numeric else " --- " for column in table.columns) + "|",
        *("| " + " | ".join(_markdown_cell(cell) for cell in row) + " |" for row in table.rows),
    ]


def _markdown_cell(cell: Cell) -> str:
    return (
        f"{markdown_text(cell.text)} ({markdown_text(cell.note)})" if cell.note else markdown_text(cell.text)
    )


MOST_CHARACTERS = 60_000
"""Length of a report; a comment on GitHub holds 65,536, including text of the program that posts it."""
_FOR_CLOSING_LINES = 1_500

_ORIGINS = Drop(40, "provenance")
_DIFFERENCES = Drop(60, "differences between runs or records")
_LEFT_OUT = Drop(90, "files that could not be used")
_RESIDUALS = Drop(72, "errors of predictions")
_PROBLEMS = Drop(130, "failures")
_SUMMARY = Drop(155, "the summary")
_RANKING = Drop(160, "rankings", singly=True)
_VERDICT = Drop(170, "verdicts", singly=True)

_LEGEND = "Rank: by examples per second among correct strategies; equal ranks are ties. Correct: {marks}."


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Block:
    text: str
    drop: Drop | None

    @property
    def size(self) -> int:
        return len(self.text) + len("\n\n")


def to_markdown(report: Report, *, most: int = MOST_CHARACTERS) -> str:
    """The report as GitHub-flavoured Markdown.

    Args:
        most: maximum number of characters; the least important tables are left out first, and a last line
            names them.
    """
    blocks = [
        _block(None, f"# {markdown_text(_clipped(report.title, most // 20))}"),
        *(_block(None, markdown_text(hint)) for hint in report.hints),
        *_blocks(report),
    ]
    fitting, left_out = _fitting(blocks, most - _FOR_CLOSING_LINES)
    texts = [block.text for block in fitting]
    if left_out:
        texts.append(
            f"Left out to fit into a GitHub comment: {', '.join(left_out)}. Full report: "
            "`stratbench report RUN_DIR --format html`, or `--format json` for programs."
        )
    return "\n\n".join(texts) + "\n"


def _blocks(report: Report) -> Iterator[_Block]:
    for origin in report.origins:
        head = " · ".join(markdown_text(text) for text in head_of(origin).values())
        yield _block(_ORIGINS, head)
    yield _block(None, f"**{report.trust.word}:** {markdown_text(report.trust.reason)}")
    summary = summary_table(report)
    if summary is not None:
        marks = legend_of({row.mark.kind for one in report.comparisons for row in one.rows})
        yield _block(_SUMMARY, *markdown_table(summary), "", markdown_text(_LEGEND.format(marks=marks)))
    for matrix in report.fault_matrices:
        heading = _heading(matrix.title, matrix, report.run_in_words(matrix.run))
        yield _block(_VERDICT, heading, "", f"**{markdown_text(front_line(matrix))}**")
        yield _block(_RANKING, *markdown_table(fault_table(matrix)))
    for comparison in report.comparisons:
        yield from _comparison_blocks(report, comparison)
    if report.residuals is not None:
        sentence = markdown_text(residuals_text(report.residuals))
        lines = markdown_table(residual_table(report.residuals))
        yield _folded(_RESIDUALS, "Errors of predictions", sentence, "", *lines)
    if report.problems:
        title = f"Failures: {len(report.problems)}"
        yield _folded(_PROBLEMS, title, *markdown_table(problem_table(report.problems)))
    if report.left_out:
        items = [f"- {markdown_text(item.where)}: {markdown_text(item.why)}" for item in report.left_out]
        yield _folded(_LEFT_OUT, f"Left out: {len(items)}", *items)
    differing = difference_table(report)
    if differing is not None:
        yield _folded(_DIFFERENCES, "Differences", *_captioned(differing))
    for origin in report.origins:
        facts = [f"- {markdown_text(name)}: {markdown_text(value)}" for name, value in origin.facts]
        run = f"**{markdown_text(report.run_in_words(origin.run) or origin.run)}**"
        yield _folded(_ORIGINS, "Provenance", run, "", *facts)


def _comparison_blocks(report: Report, comparison: Comparison) -> Iterator[_Block]:
    heading = _heading(comparison.workload, comparison, report.run_in_words(comparison.run))
    warnings = [f"- {markdown_text(note.text)}" for note in top_warnings(comparison)]
    headline = f"**{markdown_text(comparison.verdict.headline)}**"
    yield _block(_VERDICT, heading, "", headline, *(["", *warnings] if warnings else []))
    yield _block(_RANKING, *markdown_table(speed_table(comparison)))
    for section in sections_of(report, comparison):
        texts = [f"- {markdown_text(text)}" for text in section.texts(comparison)]
        tables = (table for draw in section.tables if (table := draw(comparison)) is not None)
        table = next(tables, None) if section.drop else None
        lines = [*texts, *([""] if texts and table else []), *(_captioned(table) if table else ())]
        if section.drop and lines:
            yield _folded(section.drop, section.title, *lines)


def _captioned(table: Table) -> tuple[str, ...]:
    return (markdown_text(table.caption), "", *markdown_table(table))


def _heading(title: str, of: Comparison | FaultMatrix, run: str) -> str:
    where = f"{of.shape} · run {run}" if run else of.shape
    return f"## {markdown_text(title)}\n\n{markdown_text(where)}"


def _block(drop: Drop | None, *lines: str) -> _Block:
    return _Block(text="\n".join(lines), drop=drop)


def _folded(drop: Drop | None, title: str, *lines: str) -> _Block:
    """Lines below a folded title; the title is not escaped."""
    return _block(drop, "<details>", f"<summary>{title}</summary>", "", *lines, "", "</details>")


def _fitting(blocks: Sequence[_Block], most: int) -> tuple[list[_Block], list[str]]:
    """Blocks of at most `most` characters, and the names of the missing kinds."""
    rest, missing = list(blocks), []
    for drop in sorted({block.drop for block in blocks if block.drop is not None}):
        excess = sum(block.size for block in rest) - most
        if excess <= 0:
            break
        of_kind = [block for block in rest if block.drop == drop]
        dropped = _last(of_kind, excess) if drop.singly else of_kind
        rest = [block for block in rest if block not in dropped]
        count = f"the last {len(dropped)} of {len(of_kind)} " if drop.singly else ""
        missing.append(f"{count}{drop.words}")
    return rest, missing


def _last(blocks: Sequence[_Block], n_characters: int) -> Sequence[_Block]:
    """Fewest last blocks with `n_characters` together."""
    for i in reversed(range(len(blocks))):
        n_characters -= blocks[i].size
        if n_characters <= 0:
            return blocks[i:]
    return blocks


def _clipped(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
