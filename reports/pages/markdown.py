"""Markdown as GitHub reads it: verdicts and rankings first, other tables folded, within a comment's size."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from harness.records.safe_text import spelt_out
from reports.quantities import Cell, Table
from reports.recommendation.notes import is_warning
from reports.rows.report import Comparison, FaultMatrix, LinkSensitivity, Report, Scaling
from reports.tables.curves import fault_table, front_line, link_table, scaling_table, trade_off_table
from reports.tables.figures import (
    byte_table,
    check_table,
    cost_table,
    reshard_table,
    rule_table,
    speed_table,
    step_table,
    trace_table,
)
from reports.tables.placements import difference_table, pass_table, problem_table

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

Kind = Literal[
    "heading",
    "verdict",
    "ranking",
    "reasons",
    "curves",
    "problems",
    "checks",
    "bytes",
    "steps",
    "trade-off",
    "rules",
    "resharding",
    "traced",
    "left-out",
    "passes",
    "costs",
    "differences",
    "origins",
]
_DROPPED_WHOLE: dict[Kind, str] = {
    "passes": "passes over graphs",
    "costs": "other costs",
    "traced": "where a step's time goes",
    "origins": "what ran where",
    "resharding": "variables in parts",
    "differences": "facts that differ",
    "trade-off": "speed against bytes",
    "rules": "rules of aggregation",
    "left-out": "what the report itself could not use",
    "steps": "step times",
    "bytes": "bytes over the wire",
    "checks": "equivalence checks",
    "problems": "failures",
    "curves": "scaling and links",
    "reasons": "reasons and notes",
}
"""What is left out for want of room, the least important first, in words."""
_DROPPED_SINGLY: dict[Kind, str] = {"ranking": "rankings", "verdict": "verdicts"}

_LEGEND = (
    "Mark: what a check against one device says of what a strategy computes; a control sends nothing and "
    "never wins. Rank: by examples per second of those that compute the right thing; these repeats cannot "
    "tell apart those that share one."
)

_FOLDED: tuple[tuple[Kind, str, Callable[[Comparison], Table | None]], ...] = (
    ("steps", "Step times", step_table),
    ("traced", "Where a step's time goes", trace_table),
    ("bytes", "Over the wire, per step", byte_table),
    ("trade-off", "Speed against bytes", trade_off_table),
    ("resharding", "Variables in parts while a loop runs", reshard_table),
    ("rules", "Combining gradients by a rule", rule_table),
    ("checks", "Does it compute the right thing?", check_table),
    ("passes", "What each pass makes of the graph", pass_table),
    ("costs", "Other costs", cost_table),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    kind: Kind
    text: str


def to_markdown(report: Report, *, most: int = MOST_CHARACTERS) -> str:
    """The report as GitHub-flavoured Markdown.

    Args:
        most: characters, of which the least important tables are left out first, and that is said.
    """
    blocks = [
        _block("heading", f"# {markdown_text(_clipped(report.title, most // 20))}"),
        *(_block("heading", markdown_text(hint)) for hint in report.hints),
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
        yield _block("heading", markdown_text(_LEGEND))
    for comparison in report.comparisons:
        yield from _comparison_blocks(comparison, report.run_in_words(comparison.run))
    for matrix in report.fault_matrices:
        heading = _heading(matrix.title, matrix, report.run_in_words(matrix.run))
        yield _block("verdict", heading, "", f"**{markdown_text(front_line(matrix))}**")
        yield _block("ranking", *markdown_table(fault_table(matrix)))
    across: tuple[Scaling | LinkSensitivity, ...] = (*report.scaling, *report.link_sensitivity)
    for curves in across:
        yield _curves_block(curves, report.run_in_words(curves.run))
    if report.problems:
        title = f"Failures: {len(report.problems)}"
        yield _folded("problems", title, *markdown_table(problem_table(report.problems)))
    if report.left_out:
        items = [f"- {markdown_text(item.where)}: {markdown_text(item.why)}" for item in report.left_out]
        yield _folded("left-out", f"Left out: {len(items)}", *items)
    differing = difference_table(report)
    if differing is not None:
        caption = markdown_text(differing.caption)
        yield _folded("differences", "What differs", caption, "", *markdown_table(differing))
    for origin in report.origins:
        facts = [f"- {markdown_text(name)}: {markdown_text(value)}" for name, value in origin.facts]
        yield _folded(
            "origins",
            "What ran where",
            f"**{markdown_text(report.run_in_words(origin.run) or origin.run)}**",
            "",
            *facts,
        )


def _comparison_blocks(comparison: Comparison, run: str) -> Iterator[_Block]:
    verdict = comparison.verdict
    answers = [each.text for each in verdict.answers if each.goal != verdict.goal]
    heading = _heading(comparison.workload, comparison, run)
    further = [line for text in answers for line in ("", markdown_text(text))]
    yield _block("verdict", heading, "", f"**{markdown_text(verdict.headline)}**", *further)
    ranking = speed_table(comparison)
    yield _block("ranking", *markdown_table(ranking), "", markdown_text(ranking.caption))
    warnings = [note for note in comparison.notes if is_warning(note)]
    details = [text for text in verdict.details if text not in answers]
    reasons = (*warnings, *details, *(note for note in comparison.notes if not is_warning(note)))
    if reasons:
        yield _block("reasons", *(f"- {markdown_text(text)}" for text in reasons))
    for kind, title, table in _FOLDED:
        content = table(comparison)
        if content is not None:
            yield _folded(kind, title, markdown_text(content.caption), "", *markdown_table(content))


def _curves_block(curves: Scaling | LinkSensitivity, run: str) -> _Block:
    if isinstance(curves, Scaling):
        title, table, sentences = "Scaling", scaling_table(curves), []
    else:
        title, table = "Links", link_table(curves)
        sentences = [f"- {markdown_text(sentence)}" for sentence in curves.sentences]
    heading = _heading(f"{title}: {curves.workload}", curves, run)
    return _block("curves", heading, "", *sentences, *([""] if sentences else []), *markdown_table(table))


def _heading(title: str, of: Comparison | FaultMatrix | Scaling | LinkSensitivity, run: str) -> str:
    where = f"{of.shape} · run {run}" if run else of.shape
    return f"## {markdown_text(title)}\n\n{markdown_text(where)}"


def _block(kind: Kind, *lines: str) -> _Block:
    return _Block(kind=kind, text="\n".join(lines))


def _folded(kind: Kind, title: str, *lines: str) -> _Block:
    """Lines that are shown once a reader opens them; the title is ours and no Markdown."""
    return _block(kind, "<details>", f"<summary>{title}</summary>", "", *lines, "", "</details>")


def _fitting(blocks: Sequence[_Block], most: int) -> tuple[list[_Block], list[str]]:
    """Blocks of not more than so many characters, and in words what is missing."""
    kept, missing = list(blocks), []
    for kind, words in _DROPPED_WHOLE.items():
        if _size(kept) <= most:
            break
        if any(block.kind == kind for block in kept):
            kept = [block for block in kept if block.kind != kind]
            missing.append(words)
    for kind, words in _DROPPED_SINGLY.items():
        excess, last = _size(kept) - most, []
        for block in reversed([block for block in kept if block.kind == kind]):
            if excess <= 0:
                break
            last.append(id(block))
            excess -= len(block.text) + 2
        if last:
            total = sum(block.kind == kind for block in kept)
            kept = [block for block in kept if id(block) not in last]
            missing.append(f"the last {len(last)} of {total} {words}")
    return kept, missing


def _size(blocks: Sequence[_Block]) -> int:
    return sum(len(block.text) + 2 for block in blocks)


def _clipped(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
