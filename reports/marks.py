"""Marks: the one table of their symbols, words and colours, and the mark of a case with its explanation."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from harness.records.outcome import Equivalence
from harness.records.record import Record
from reports.quantities import MISSING, error
from reports.rows.parts import Mark, MarkKind
from reports.rows.row import Row


@dataclass(frozen=True, slots=True)
class MarkForm:
    """Form of a mark in every medium; `color` is a name of the style sheet."""

    symbol: str
    word: str
    color: str
    is_outlined: bool = False


FORMS: dict[MarkKind, MarkForm] = {
    "equivalent": MarkForm("✓", "equivalent", "blue"),
    "reference": MarkForm("✓", "one device", "blue"),
    "within-bound": MarkForm("≈", "lossy, within the compressor's bound", "green"),
    "not-equivalent": MarkForm("✗", "not equivalent", "red"),
    "beyond-bound": MarkForm("✗", "beyond the compressor's bound", "red"),
    "undecidable": MarkForm("?", "undecidable", "grey"),
    "not-checked": MarkForm(MISSING, "not checked", "grey"),
    "statistical": MarkForm(MISSING, "compared by loss only", "purple"),
    "control": MarkForm(MISSING, "no communication", "grey", is_outlined=True),
    "twin": MarkForm(MISSING, "A/A copy", "grey", is_outlined=True),
}
SYMBOLS = {kind: form.symbol for kind, form in FORMS.items()}
WORDS = {kind: form.word for kind, form in FORMS.items()}
LEGEND = {"✓": "equivalent to one device"}
"""Symbol of a mark → its meaning, if that is not the words of its kinds."""

INPUT_BOUND = "input-bound"
HOST_BOUND = "host-bound"
_N_NAMED = 3


def legend_of(kinds: Collection[MarkKind]) -> str:
    """Symbols of some kinds of marks with their meanings."""
    words: dict[str, list[str]] = {}
    for kind in (kind for kind in FORMS if kind in kinds):
        words.setdefault(SYMBOLS[kind], []).append(WORDS[kind])
    return ", ".join(
        f"{symbol} {LEGEND.get(symbol) or ' or '.join(names)}" for symbol, names in words.items()
    )


def mark_text(kind: MarkKind) -> str:
    """Symbol and word of a mark."""
    return f"{SYMBOLS[kind]} {WORDS[kind]}"


def mark_words(row: Row) -> str:
    """Mark of a row, and the bound that hides its speed: its input or the host of its GPUs."""
    bounds = ((INPUT_BOUND, row.input_bound), (HOST_BOUND, row.host_bound))
    return ", ".join([mark_text(row.mark.kind), *(name for name, is_bound in bounds if is_bound)])


def why_unranked(row: Row) -> str:
    """Reason why a row has no rank, in a few words; empty if it has one."""
    if row.rank is not None:
        return ""
    if row.status != "ok":
        return row.status
    if row.mark.proven:
        return "too few repeats"
    return row.mark.explanation if row.mark.kind == "not-checked" else WORDS[row.mark.kind]


def mark_of(records: Sequence[Record]) -> Mark:
    """Mark of one case; one failed check among its repeats outweighs any number of passed ones.

    Args:
        records: all repeats of the case, at least one.
    """
    first = records[0]
    checks = [r.equivalence for r in records if r.equivalence is not None and r.equivalence.checked]
    failed = next((check for check in checks if check.equivalent is False), None)
    check = failed or next(iter(checks), None)
    if first.is_twin:
        return _mark("twin", "A/A copy of the baseline, not ranked", check)
    if first.strategy_class == "control":
        return _of_control(first, checks, failed)
    if failed is not None:
        return _mark("not-equivalent", _because(f"{_error(failed)}: differs from one device", failed), failed)
    if first.strategy_class == "statistical":
        return _mark("statistical", "statistical class: compared by loss, not by variables", check)
    if not checks:
        return _unchecked(records)
    return _of_bounded(checks) if first.strategy_class == "bounded" else _of_exact(checks)


def _of_control(first: Record, checks: Sequence[Equivalence], failed: Equivalence | None) -> Mark:
    passed = next((check for check in checks if check.equivalent is True), None)
    is_blind = failed is None and passed is not None and first.workers * first.replicas > 1
    if failed is not None:
        text = "no communication; the check reports the difference, so it can fail"
    elif is_blind:
        text = "no communication, yet it passed the check: the check is blind here"
    else:
        text = "no communication"
    return replace(_mark("control", text, failed or next(iter(checks), None)), blind=is_blind)


def _of_exact(checks: Sequence[Equivalence]) -> Mark:
    undecided = next((check for check in checks if check.equivalent is None), None)
    if undecided is not None:
        return _mark("undecidable", _because("rounding hides the difference", undecided), undecided)
    return _mark("equivalent", _error(checks[0]), checks[0])


def _of_bounded(checks: Sequence[Equivalence]) -> Mark:
    beyond = next((check for check in checks if check.within_bound is False), None)
    if beyond is not None:
        return _mark("beyond-bound", _because(WORDS["beyond-bound"], beyond), beyond)
    hidden = next((check for check in checks if check.within_bound is None), None)
    if hidden is not None:
        return _mark("undecidable", _because("rounding hides the compressor's loss", hidden), hidden)
    return _mark("within-bound", f"{WORDS['within-bound']}{_hidden(checks[0])}", checks[0])


def _unchecked(records: Sequence[Record]) -> Mark:
    if records[0].workers * records[0].replicas == 1:
        return _mark("reference", "one device runs the captured step unchanged", None)
    tried = next((r.equivalence for r in records if r.equivalence and r.equivalence.reason), None)
    return _mark("not-checked", _because("not checked", tried), None)


def _error(check: Equivalence) -> str:
    types = "" if check.dtype == "model" else " (checked in float64 in one process)"
    errors = f"{error(check.max_update_error)}, tolerance {error(check.tolerance)}"
    return f"update error nearest to its limit {errors}{types}{_hidden(check)}"


def _hidden(check: Equivalence) -> str:
    n = len(check.undecidable)
    names = ", ".join(check.undecidable[:_N_NAMED])
    return f"; rounding hides {n} more: {names}{', …' if n > _N_NAMED else ''}" if n else ""


def _because(text: str, check: Equivalence | None) -> str:
    return f"{text}: {check.reason}" if check and check.reason else text


def _mark(kind: MarkKind, explanation: str, check: Equivalence | None) -> Mark:
    return Mark(
        kind=kind,
        explanation=explanation,
        max_update_error=check.max_update_error if check else None,
        noise_floor=check.noise_floor if check else None,
        tolerance=check.tolerance if check else None,
        undecidable=check.undecidable if check else (),
    )
