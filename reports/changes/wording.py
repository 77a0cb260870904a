"""Changes between two runs as a person and a program are told of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from harness.records.safe_text import spelt_out
from reports.changes.changes import ByBaseline, Change, Changes, Factor, JudgedBy, Verdict
from reports.changes.standings import WorkloadChange
from reports.pages.markdown import markdown_table, markdown_text
from reports.pages.terminal import TerminalTable
from reports.quantities import MISSING, Cell, Table, digits, limits, table_of, times

VERDICT_WORDS: dict[Verdict, str] = {
    "faster": "faster",
    "slower": "slower",
    "same": "the same",
    "cannot-tell": "cannot be told",
    "not-comparable": "not comparable",
}
_N_NAMED = 3


def headline(changes: Changes) -> str:
    """The answer in a line: what got worse, that nothing did, or how much worse it may be unseen."""
    slower = [each for each in changes.cases if each.verdict == "slower" and not each.broken]
    broken = [each for each in changes.cases if each.broken]
    parts = [f"{_share(broken, changes)} broken: {_named(broken)}"] if broken else []
    parts += [f"{_share(slower, changes)} slower: {_named(slower)}"] if slower else []
    heavier = [each for each in changes.cases if each.more_bytes]
    parts += [f"{_share(heavier, changes)} sending more: {_named_bytes(heavier)}"] if heavier else []
    counts = Counter(each.verdict for each in changes.cases if each not in slower and not each.broken)
    if not parts and counts["cannot-tell"] and not (counts["same"] or counts["faster"]):
        return _nothing_told(changes)
    rest = ", ".join(
        f"{counts[verdict]} {words}" for verdict, words in VERDICT_WORDS.items() if counts[verdict]
    )
    if rest:
        # The baseline is left open by rule, and its rate is that of the day.
        unseen = _unseen(
            [each for each in changes.cases if each.verdict == "cannot-tell" and not each.is_baseline]
        )
        rest += f"; {unseen}" if unseen else ""
        parts += [rest] if parts or changes.is_empty else [f"No case is shown to be slower or broken: {rest}"]
    nothing = "Nothing can be compared: " if changes.is_empty and not broken else ""
    return _with_workloads(f"{nothing}{'; '.join(parts) or 'no case is in either run'}.", changes)


def _with_workloads(answer: str, changes: Changes) -> str:
    changed = [each for each in changes.workloads if each.differs]
    if not changed:
        return answer
    named = ", ".join(f"{each.workload} ({'; '.join(each.differs)})" for each in changed[:_N_NAMED])
    more = f" and {len(changed) - _N_NAMED} more" if len(changed) > _N_NAMED else ""
    return f"{answer} Not the same workload as before, so judged by rates: {named}{more}."


def _nothing_told(changes: Changes) -> str:
    """The answer where no case is known to be the same, faster or slower: no all-clear."""
    untold = [each for each in changes.cases if each.verdict == "cannot-tell"]
    why = _unseen(untold) or next((each.why for each in untold if not each.is_baseline), untold[0].why)
    left = len(changes.cases) - len(untold)
    rest = f"; {left} {VERDICT_WORDS['not-comparable']}" if left else ""
    return _with_workloads(f"Nothing can be told of {_share(untold, changes)}: {why}{rest}.", changes)


def _unseen(untold: Sequence[Change]) -> str:
    """The largest slow-down that the intervals of cases leave possible of which nothing can be told."""
    lows = [each.factor.interval.low for each in untold if each.factor and each.factor.interval]
    if not lows or min(lows) >= 1.0:
        return ""
    return f"a case up to {digits(100 * (1.0 - min(lows)), significant=2)} % slower would go unseen"


def changes_table(changes: Changes) -> Table:
    """Each case in a line: what has changed, by how much, and what that rests on."""
    rows: list[tuple[Cell, ...]] = [
        (
            Cell(text=each.strategy),
            Cell(text=f"{each.workload} · {each.shape}"),
            Cell(text=_verdict(each)),
            _factor_cell(each.factor),
            Cell(text=_figure(each.judged_by) or MISSING),
            _factor_cell(each.rate_factor),
            Cell(text="; ".join(filter(None, (each.why, *each.notes)))),
        )
        for each in changes.cases
    ]
    return table_of(
        f"{changes.after} against {changes.before}; the same is within {100 * changes.threshold:.3g} %",
        ("strategy", "case", "verdict", "now : before", "of", "rates", "why"),
        rows,
        words=("case", "verdict", "of", "why"),
    )


def to_terminal(changes: Changes) -> TerminalTable:
    """The changes as literal text."""
    table = changes_table(changes)
    return TerminalTable(
        title=spelt_out(table.caption),
        columns=tuple(spelt_out(column.name) for column in table.columns),
        rows=tuple(
            tuple(spelt_out(f"{cell.text} {cell.note}".rstrip()) for cell in row) for row in table.rows
        ),
        verdict=tuple(map(spelt_out, (headline(changes), *_further(changes)))),
        notes=tuple(map(spelt_out, changes.differences)),
    )


def to_markdown(changes: Changes) -> str:
    """The changes for a pull request or a CI step summary."""
    table = changes_table(changes)
    lines = [f"**{markdown_text(headline(changes))}**", ""]
    lines += [markdown_text(text) for text in _further(changes)]
    lines += ["", markdown_text(table.caption), "", *markdown_table(table)]
    if changes.differences:
        lines += ["", "What differs around them:", ""]
        lines += [f"- {markdown_text(text)}" for text in changes.differences]
    return "\n".join(lines) + "\n"


def to_document(changes: Changes) -> dict[str, object]:
    """The changes as mappings and scalars."""
    return {
        "before": changes.before,
        "after": changes.after,
        "threshold": changes.threshold,
        "cases": [_document(each) for each in changes.cases],
        "geometric_mean": changes.geometric_mean,
        "workloads": [
            {"workload": each.workload, "differs": list(each.differs), "unknown": list(each.unknown)}
            for each in changes.workloads
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


def _share(some: list[Change], changes: Changes) -> str:
    of = len(changes.cases)
    return f"{len(some)} of {of} case{'s' if of != 1 else ''}"


def _named(some: list[Change]) -> str:
    names = [f"{each.strategy}{_by(each.factor)}" for each in some[:_N_NAMED]]
    return ", ".join(names) + (f" and {len(some) - _N_NAMED} more" if len(some) > _N_NAMED else "")


def _named_bytes(some: list[Change]) -> str:
    names = [f"{each.strategy} {', '.join(each.more_bytes)}" for each in some[:_N_NAMED]]
    return ", ".join(names) + (f" and {len(some) - _N_NAMED} more" if len(some) > _N_NAMED else "")


def _by(factor: Factor | None) -> str:
    if factor is None or factor.interval is None:
        return ""
    return f" {times(factor.value)} [{limits(factor.interval)}]"


def _further(changes: Changes) -> tuple[str, ...]:
    return (*_all_together(changes), *map(_unknown, filter(_is_unknown, changes.workloads)))


def _is_unknown(workload: WorkloadChange) -> bool:
    return bool(workload.unknown)


def _unknown(workload: WorkloadChange) -> str:
    missing = " and ".join(workload.unknown)
    return f"{workload.workload} may not be the same in both runs: one has no record of {missing}."


def _all_together(changes: Changes) -> tuple[str, ...]:
    if changes.geometric_mean is None:
        return ()
    same = " of the workloads that are the same" if any(w.differs for w in changes.workloads) else ""
    together = f"Rates of all comparable cases{same} together: {times(changes.geometric_mean)} of before"
    return (f"{together}, be it by the machine or by what all cases share.",)


def _verdict(change: Change) -> str:
    words = VERDICT_WORDS[change.verdict]
    flags = [*(["BROKEN"] if change.broken else []), *(["SENDS MORE"] if change.more_bytes else [])]
    return ", ".join([*flags, words])


def _figure(judged_by: JudgedBy | None) -> str | None:
    if judged_by is None:
        return None
    return f"÷ {judged_by.name}" if isinstance(judged_by, ByBaseline) else "rate"


def _factor_cell(factor: Factor | None) -> Cell:
    return (
        Cell(text=MISSING) if factor is None else Cell(text=times(factor.value), note=limits(factor.interval))
    )
