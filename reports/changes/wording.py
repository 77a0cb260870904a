"""Changes between two runs as text, Markdown and JSON."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from harness.records.safe_text import printable
from reports.changes.changes import ByBaseline, Change, Changes, Factor, JudgedBy, Verdict
from reports.pages.markdown import markdown_table, markdown_text
from reports.quantities import MISSING, Cell, Table, digits, limits, table_of, times

VERDICT_WORDS: dict[Verdict, str] = {
    "faster": "faster",
    "slower": "slower",
    "same": "the same",
    "cannot-tell": "undecided",
    "not-comparable": "not comparable",
}
_N_NAMED = 3
_N_COLUMNS = 100
_COLUMNS = ("verdict", "now ÷ before", "measured by", "examples/s")
_SURROUNDINGS = "Differences in code and machine:"
_OTHER_WORKLOAD = "{workload} has changed ({facts}): its cases are compared by examples/s."
_UNKNOWN_WORKLOAD = "{workload} may have changed: one run did not record {facts}."
_UNSEEN = "An undecided case may be up to {percent} % slower."
_GEOMETRIC_MEAN = (
    "Examples/s of unchanged workloads: {times} of before (geometric mean). Machine load has the same effect."
)


def headline(changes: Changes) -> str:
    """Number of cases of each verdict; those that got worse come first, with their names."""
    if not changes.cases:
        return "No case is in either run."
    broken = [change for change in changes.cases if change.broken]
    slower = [change for change in changes.cases if change.verdict == "slower" and not change.broken]
    heavier = [change for change in changes.cases if change.more_bytes]
    parts = [
        f"{len(cases)} {words} ({_named(cases, detail)})"
        for words, cases, detail in (
            ("broken", broken, _by),
            ("slower", slower, _by),
            ("sending more", heavier, _bytes),
        )
        if cases
    ]
    counts = Counter(change.verdict for change in changes.cases if change not in (*broken, *slower))
    parts += [f"{counts[verdict]} {words}" for verdict, words in VERDICT_WORDS.items() if counts[verdict]]
    n = len(changes.cases)
    nothing = " Nothing can be compared." if changes.is_empty else ""
    return f"{n} case{'s' if n > 1 else ''}: {', '.join(parts)}.{nothing}"


def _named(cases: Sequence[Change], detail: Callable[[Change], str]) -> str:
    names = [f"{change.strategy} {detail(change)}".rstrip() for change in cases[:_N_NAMED]]
    more = [f"{len(cases) - _N_NAMED} more"] if len(cases) > _N_NAMED else []
    return ", ".join([*names, *more])


def _by(change: Change) -> str:
    factor = change.factor
    return f"{times(factor.value)} [{limits(factor.interval)}]" if factor and factor.interval else ""


def _bytes(change: Change) -> str:
    return " and ".join(change.more_bytes)


def changes_table(changes: Changes) -> Table:
    """Each case in a line: what has changed, by how much, and what that rests on."""
    rows: list[tuple[Cell, ...]] = [
        (
            Cell(text=case.strategy),
            Cell(text=f"{case.workload} · {case.shape}"),
            Cell(text=_verdict(case)),
            _factor_cell(case.factor),
            Cell(text=_figure(case.judged_by) or MISSING),
            _factor_cell(case.rate_factor),
            Cell(text="; ".join(filter(None, (case.why, *case.notes)))),
        )
        for case in changes.cases
    ]
    return table_of(
        _caption(changes),
        ("strategy", "case", *_COLUMNS, "why"),
        rows,
        words=("case", "verdict", "measured by", "why"),
    )


def _caption(changes: Changes) -> str:
    return (
        f"{changes.after} compared with {changes.before}; "
        f"changes up to {100 * changes.threshold:.3g} % count as the same"
    )


def to_text(changes: Changes) -> str:
    """The changes for a terminal, at most 100 columns wide unless a name is wider."""
    rows = [
        (
            _verdict(case),
            _factor_text(case.factor),
            _figure(case.judged_by) or MISSING,
            _factor_text(case.rate_factor),
        )
        for case in changes.cases
    ]
    names = [printable(case.strategy) for case in changes.cases]
    cells = [("strategy", *_COLUMNS), *((name, *row) for name, row in zip(names, rows, strict=True))]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    header, *lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    paragraphs = map(_wrapped, (headline(changes), *_further(changes)))
    text = [*paragraphs, "", _wrapped(_caption(changes)), "", f"  {header}"]
    group = ""
    # A reason that several cases have stands once, below the table.
    shared = Counter((case.verdict, case.why) for case in changes.cases)
    for case, line in zip(changes.cases, lines, strict=True):
        if (own := f"{case.workload} · {case.shape}") != group:
            group = own
            text.append(_wrapped(group))
        text.append(f"  {line}")
        own_reason = "" if shared[case.verdict, case.why] > 1 else case.why
        text += [_wrapped(reason, indent=6) for reason in filter(None, (own_reason, *case.notes))]
    repeated = [key for key, n_cases in shared.items() if n_cases > 1 and key[1]]
    text += ["", *(_wrapped(f"{VERDICT_WORDS[verdict]}: {why}") for verdict, why in repeated)] * bool(
        repeated
    )
    if changes.differences:
        text += ["", _SURROUNDINGS, *(_wrapped(difference, indent=2) for difference in changes.differences)]
    return "\n".join(text) + "\n"


def _wrapped(text: str, *, indent: int = 0) -> str:
    margin = " " * indent
    return textwrap.fill(
        printable(text),
        _N_COLUMNS,
        initial_indent=margin,
        subsequent_indent=margin,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _factor_text(factor: Factor | None) -> str:
    cell = _factor_cell(factor)
    return f"{cell.text} {cell.note}".rstrip()


def to_markdown(changes: Changes) -> str:
    """The changes for a pull request or a CI step summary."""
    table = changes_table(changes)
    lines = [f"**{markdown_text(headline(changes))}**", ""]
    lines += [markdown_text(text) for text in _further(changes)]
    lines += ["", markdown_text(table.caption), "", *markdown_table(table)]
    if changes.differences:
        lines += ["", _SURROUNDINGS, ""]
        lines += [f"- {markdown_text(text)}" for text in changes.differences]
    return "\n".join(lines) + "\n"


def to_document(changes: Changes) -> dict[str, object]:
    """The changes as mappings and scalars."""
    return {
        "before": changes.before,
        "after": changes.after,
        "threshold": changes.threshold,
        "cases": [_document(case) for case in changes.cases],
        "geometric_mean": changes.geometric_mean,
        "workloads": [
            {
                "workload": workload.workload,
                "differs": list(workload.differs),
                "unknown": list(workload.unknown),
            }
            for workload in changes.workloads
        ],
        "differences": list(changes.differences),
    }


def _document(change: Change) -> dict[str, object]:
    interval = change.factor.interval if change.factor else None
    return {
        "case": change.case,
        "workload": change.workload,
        "shape": change.shape,
        "strategy": change.strategy,
        "verdict": change.verdict,
        "ratio": change.factor.value if change.factor else None,
        "interval": {"low": interval.low, "high": interval.high} if interval else None,
        "of": _figure(change.judged_by),
        "rate_ratio": change.rate_factor.value if change.rate_factor else None,
        "broken": change.broken,
        "more_bytes": list(change.more_bytes),
        "why": change.why,
        "notes": list(change.notes),
    }


def _further(changes: Changes) -> Iterator[str]:
    """Lines between the headline and the table."""
    for workload in changes.workloads:
        if workload.differs:
            yield _OTHER_WORKLOAD.format(workload=workload.workload, facts=" and ".join(workload.differs))
        if workload.unknown:
            yield _UNKNOWN_WORKLOAD.format(workload=workload.workload, facts=" and ".join(workload.unknown))
    # The baseline cannot be judged by rule, and its rate depends on the day.
    lows = [
        change.factor.interval.low
        for change in changes.cases
        if change.verdict == "cannot-tell"
        and not change.is_baseline
        and change.factor is not None
        and change.factor.interval is not None
    ]
    if lows and min(lows) < 1.0:
        yield _UNSEEN.format(percent=digits(100 * (1.0 - min(lows)), significant=2))
    if changes.geometric_mean is not None:
        yield _GEOMETRIC_MEAN.format(times=times(changes.geometric_mean))


def _verdict(change: Change) -> str:
    words = VERDICT_WORDS[change.verdict]
    flags = [*(["BROKEN"] if change.broken else []), *(["SENDS MORE"] if change.more_bytes else [])]
    return ", ".join([*flags, words])


def _figure(judged_by: JudgedBy | None) -> str | None:
    if judged_by is None:
        return None
    return f"ratio to {judged_by.name}" if isinstance(judged_by, ByBaseline) else "examples/s"


def _factor_cell(factor: Factor | None) -> Cell:
    return (
        Cell(text=MISSING) if factor is None else Cell(text=times(factor.value), note=limits(factor.interval))
    )
