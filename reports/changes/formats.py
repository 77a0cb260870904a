"""Changes between two runs as text, Markdown and JSON."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from harness.records.safe_text import printable
from reports.changes import phrases
from reports.changes.changes import ByBaseline, Change, Changes, Factor, JudgedBy
from reports.pages.markdown import markdown_table, markdown_text
from reports.quantities import MISSING, Cell, Table, digits, limits, table_of, times

_N_NAMED = 3
_N_COLUMNS = 100
_COLUMNS = ("verdict", "now ÷ before", "measured by", "examples/s")


def headline(changes: Changes) -> str:
    """Number of cases of each verdict; cases that got worse come first, with their names."""
    if not changes.cases:
        return phrases.NO_CASES
    broken = [change for change in changes.cases if change.broken]
    slower = [change for change in changes.cases if change.verdict == "slower" and not change.broken]
    worse = (
        (phrases.BROKEN, broken, _factor_of),
        (phrases.VERDICTS["slower"], slower, _factor_of),
        (phrases.SENDS_MORE, [change for change in changes.cases if change.more_bytes], _bytes_of),
    )
    parts = [f"{len(cases)} {words} ({_named(cases, detail)})" for words, cases, detail in worse if cases]
    counts = Counter(change.verdict for change in changes.cases if change not in (*broken, *slower))
    parts += [f"{counts[verdict]} {words}" for verdict, words in phrases.VERDICTS.items() if counts[verdict]]
    n = len(changes.cases)
    text = phrases.COUNTS.format(n=n, s="s" if n > 1 else "", counts=", ".join(parts))
    return text + (phrases.NOTHING_COMPARABLE if changes.is_empty else "")


def _named(cases: Sequence[Change], detail: Callable[[Change], str]) -> str:
    names = [f"{change.strategy} {detail(change)}".rstrip() for change in cases[:_N_NAMED]]
    more = [f"{len(cases) - _N_NAMED} more"] if len(cases) > _N_NAMED else []
    return ", ".join([*names, *more])


def _factor_of(change: Change) -> str:
    factor = change.factor
    return f"{times(factor.value)} [{limits(factor.interval)}]" if factor and factor.interval else ""


def _bytes_of(change: Change) -> str:
    return " and ".join(change.more_bytes)


def changes_table(changes: Changes) -> Table:
    """One row per case: verdict, change, and reason."""
    rows: list[tuple[Cell, ...]] = [
        (
            Cell(text=case.strategy),
            Cell(text=f"{case.workload} · {case.shape}"),
            Cell(text=_verdict(case)),
            _factor_cell(case.factor),
            Cell(text=_figure_name(case.judged_by) or MISSING),
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
    percent = f"{100 * changes.threshold:.3g}"
    return phrases.CAPTION.format(after=changes.after, before=changes.before, percent=percent)


def to_text(changes: Changes) -> str:
    """Changes for a terminal, in 100 columns unless a name is longer."""
    cells = [("strategy", *_COLUMNS), *map(_line_cells, changes.cases)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    header, *lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in cells
    ]
    paragraphs = map(_wrapped, (headline(changes), *_lines_of_all(changes)))
    text = [*paragraphs, "", _wrapped(_caption(changes)), "", f"  {header}", *_case_lines(changes, lines)]
    if changes.differences:
        text += ["", phrases.DIFFERENCES]
        text += [_wrapped(difference, indent=2) for difference in changes.differences]
    return "\n".join(text) + "\n"


def _line_cells(case: Change) -> tuple[str, ...]:
    return (
        printable(case.strategy),
        _verdict(case),
        _factor_text(case.factor),
        _figure_name(case.judged_by) or MISSING,
        _factor_text(case.rate_factor),
    )


def _case_lines(changes: Changes, lines: Sequence[str]) -> Iterator[str]:
    """Lines of cases under their workload and shape, then the reasons that several cases share."""
    group = ""
    shared = Counter((case.verdict, case.why) for case in changes.cases)
    for case, line in zip(changes.cases, lines, strict=True):
        if (own := f"{case.workload} · {case.shape}") != group:
            group = own
            yield _wrapped(group)
        yield f"  {line}"
        own_reason = "" if shared[case.verdict, case.why] > 1 else case.why
        for reason in filter(None, (own_reason, *case.notes)):
            yield _wrapped(reason, indent=6)
    if repeated := [key for key, n_cases in shared.items() if n_cases > 1 and key[1]]:
        yield ""
        for verdict, why in repeated:
            yield _wrapped(f"{phrases.VERDICTS[verdict]}: {why}")


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
    """Changes for a pull request or a CI step summary."""
    table = changes_table(changes)
    lines = [f"**{markdown_text(headline(changes))}**", ""]
    lines += [markdown_text(text) for text in _lines_of_all(changes)]
    lines += ["", markdown_text(table.caption), "", *markdown_table(table)]
    if changes.differences:
        lines += ["", phrases.DIFFERENCES, ""]
        lines += [f"- {markdown_text(text)}" for text in changes.differences]
    return "\n".join(lines) + "\n"


def to_document(changes: Changes) -> dict[str, object]:
    """Changes as mappings and scalars."""
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
        "of": _figure_name(change.judged_by),
        "rate_ratio": change.rate_factor.value if change.rate_factor else None,
        "broken": change.broken,
        "more_bytes": list(change.more_bytes),
        "why": change.why,
        "notes": list(change.notes),
    }


def _lines_of_all(changes: Changes) -> Iterator[str]:
    """Lines between the headline and the table."""
    for workload in changes.workloads:
        if workload.differs:
            yield phrases.OTHER_WORKLOAD.format(
                workload=workload.workload, facts=" and ".join(workload.differs)
            )
        if workload.unknown:
            yield phrases.UNKNOWN_WORKLOAD.format(
                workload=workload.workload, facts=" and ".join(workload.unknown)
            )
    # The baseline has no verdict, and its throughput depends on the load of the machine.
    lows = [
        change.factor.interval.low
        for change in changes.cases
        if change.verdict == "cannot-tell"
        and not change.is_baseline
        and change.factor is not None
        and change.factor.interval is not None
    ]
    if lows and min(lows) < 1.0:
        yield phrases.LARGEST_SLOWDOWN.format(percent=digits(100 * (1.0 - min(lows)), significant=2))
    if changes.geometric_mean is not None:
        yield phrases.GEOMETRIC_MEAN.format(times=times(changes.geometric_mean))


def _verdict(change: Change) -> str:
    words = phrases.VERDICTS[change.verdict]
    flags = [*(["BROKEN"] if change.broken else []), *(["SENDS MORE"] if change.more_bytes else [])]
    return ", ".join([*flags, words])


def _figure_name(judged_by: JudgedBy | None) -> str | None:
    if judged_by is None:
        return None
    return f"ratio to {judged_by.name}" if isinstance(judged_by, ByBaseline) else "examples/s"


def _factor_cell(factor: Factor | None) -> Cell:
    return (
        Cell(text=MISSING) if factor is None else Cell(text=times(factor.value), note=limits(factor.interval))
    )
