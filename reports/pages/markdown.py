"""Markdown as GitHub reads it: verdicts and rankings first, other tables folded, within a comment's size."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.records.safe_text import spelt_out
from reports.pages.sections import SECTIONS, Drop
from reports.quantities import Cell, Table
from reports.rows.report import Comparison, FaultMatrix, LinkSensitivity, Report, Scaling
from reports.tables.curves import fault_table, front_line, link_table, scaling_table
from reports.tables.figures import speed_table
from reports.tables.placements import difference_table, problem_table

_NOTHING = "<!-- -->"
"""Stands within what GitHub would make a link of: it looks for names once Markdown has been read, when
backslashes and entities have long become what they stand for (github/cmark-gfm, issue 181)."""
_INERT = re.compile(
    # Mentions, issues by number, addresses, and emoji by name.
    r"(?P<link>@(?=\w)|#(?=\d)|\bgh-(?=\d)|:(?=//)|\bwww(?=\.)|:(?=[\w+-]+:))"
    r"|[\\`*_{}\[\]<>()#+!|~$&-]",
    re.IGNORECASE,
)
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>()#+!|~$&-])")


def markdown_text(text: str) -> str:
    """Text that Markdown shows as it is, on one line, and GitHub without a mention or reference."""
    escaped = _INERT.sub(_inert, " ".join(spelt_out(text).split()))
    # "1." at the start of a line would become a list.
    return re.sub(r"^(\d+)\.", r"\1\\.", escaped)


def _inert(match: re.Match[str]) -> str:
    return _SPECIAL.sub(r"\\\1", match[0]) + (_NOTHING if match["link"] else "")


def markdown_table(table: Table) -> list[str]:
    """Lines of a table, every cell escaped."""
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
"""A comment on GitHub holds 65,536, and some of them are for whoever posts it."""
_FOR_CLOSING_LINES = 1_500

_ORIGINS = Drop(40, "what ran where")
_DIFFERENCES = Drop(60, "facts that differ")
_LEFT_OUT = Drop(90, "what the report itself could not use")
_PROBLEMS = Drop(130, "failures")
_CURVES = Drop(140, "scaling and links")
_REASONS = Drop(150, "reasons and notes")
_RANKING = Drop(160, "rankings", singly=True)
_VERDICT = Drop(170, "verdicts", singly=True)

_LEGEND = (
    "Mark: what a check against one device says of what a strategy computes; a control sends nothing and "
    "never wins. Rank: by examples per second of those that compute the right thing; these repeats cannot "
    "tell apart those that share one."
)


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
        most: characters, of which the least important tables are left out first, and that is said.
    """
    blocks = [
        _block(None, f"# {markdown_text(_clipped(report.title, most // 20))}"),
        *(_block(None, markdown_text(hint)) for hint in report.hints),
        *_blocks(report),
    ]
    kept, left_out = _fitting(blocks, most - _FOR_CLOSING_LINES)
    texts = [block.text for block in kept]
    if left_out:
        texts.append(
            f"Left out, since a comment on GitHub holds no more: {', '.join(left_out)}. Everything is in "
            "`stratbench report RUN_DIR --format html`, and for programs in `--format json`."
        )
    return "\n\n".join(texts) + "\n"


def _blocks(report: Report) -> Iterator[_Block]:
    if report.comparisons:
        yield _block(None, markdown_text(_LEGEND))
    for comparison in report.comparisons:
        yield from _comparison_blocks(comparison, report.run_in_words(comparison.run))
    for matrix in report.fault_matrices:
        heading = _heading(matrix.title, matrix, report.run_in_words(matrix.run))
        yield _block(_VERDICT, heading, "", f"**{markdown_text(front_line(matrix))}**")
        yield _block(_RANKING, *markdown_table(fault_table(matrix)))
    across: tuple[Scaling | LinkSensitivity, ...] = (*report.scaling, *report.link_sensitivity)
    for curves in across:
        yield _curves_block(curves, report.run_in_words(curves.run))
    if report.problems:
        title = f"Failures: {len(report.problems)}"
        yield _folded(_PROBLEMS, title, *markdown_table(problem_table(report.problems)))
    if report.left_out:
        items = [f"- {markdown_text(item.where)}: {markdown_text(item.why)}" for item in report.left_out]
        yield _folded(_LEFT_OUT, f"Left out: {len(items)}", *items)
    differing = difference_table(report)
    if differing is not None:
        caption = markdown_text(differing.caption)
        yield _folded(_DIFFERENCES, "What differs", caption, "", *markdown_table(differing))
    for origin in report.origins:
        facts = [f"- {markdown_text(name)}: {markdown_text(value)}" for name, value in origin.facts]
        yield _folded(
            _ORIGINS,
            "What ran where",
            f"**{markdown_text(report.run_in_words(origin.run) or origin.run)}**",
            "",
            *facts,
        )


def _comparison_blocks(comparison: Comparison, run: str) -> Iterator[_Block]:
    verdict = comparison.verdict
    answers = [answer.text for answer in verdict.answers if answer.goal != verdict.goal]
    heading = _heading(comparison.workload, comparison, run)
    further = [line for text in answers for line in ("", markdown_text(text))]
    yield _block(_VERDICT, heading, "", f"**{markdown_text(verdict.headline)}**", *further)
    ranking = speed_table(comparison)
    yield _block(_RANKING, *markdown_table(ranking), "", markdown_text(ranking.caption))
    warnings = [note.text for note in comparison.warnings]
    details = [text for text in verdict.details if text not in answers]
    reasons = (*warnings, *details, *comparison.notes[len(warnings) :])
    if reasons:
        yield _block(_REASONS, *(f"- {markdown_text(text)}" for text in reasons))
    for section in SECTIONS:
        table = section.table(comparison) if section.table and section.drop else None
        if table is not None:
            lines = [markdown_text(table.caption), "", *markdown_table(table)]
            yield _folded(section.drop, section.title, *lines)


def _curves_block(curves: Scaling | LinkSensitivity, run: str) -> _Block:
    if isinstance(curves, Scaling):
        title, table, sentences = "Scaling", scaling_table(curves), []
    else:
        title, table = "Links", link_table(curves)
        sentences = [f"- {markdown_text(sentence)}" for sentence in curves.sentences]
    heading = _heading(f"{title}: {curves.workload}", curves, run)
    return _block(_CURVES, heading, "", *sentences, *([""] if sentences else []), *markdown_table(table))


def _heading(title: str, of: Comparison | FaultMatrix | Scaling | LinkSensitivity, run: str) -> str:
    where = f"{of.shape} · run {run}" if run else of.shape
    return f"## {markdown_text(title)}\n\n{markdown_text(where)}"


def _block(drop: Drop | None, *lines: str) -> _Block:
    return _Block(text="\n".join(lines), drop=drop)


def _folded(drop: Drop | None, title: str, *lines: str) -> _Block:
    """Lines that are shown once a reader opens them; the title is ours and no Markdown."""
    return _block(drop, "<details>", f"<summary>{title}</summary>", "", *lines, "", "</details>")


def _fitting(blocks: Sequence[_Block], most: int) -> tuple[list[_Block], list[str]]:
    """Blocks of at most so many characters, and words for each kind of block that is missing."""
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
    """Fewest last blocks that together have `n_characters`."""
    for i in reversed(range(len(blocks))):
        n_characters -= blocks[i].size
        if n_characters <= 0:
            return blocks[i:]
    return blocks


def _clipped(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
