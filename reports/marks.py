"""Equivalence mark of a case: its words, its symbol, and an explanation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.records.outcome import Equivalence
from harness.records.record import Record
from reports.quantities import error
from reports.rows.evidence import Mark, MarkKind
from reports.rows.row import Row

WORDS: dict[MarkKind, str] = {
    "equivalent": "equivalent",
    "not-equivalent": "not equivalent",
    "within-bound": "within bound",
    "beyond-bound": "beyond bound",
    "undecidable": "undecidable",
    "control": "control",
    "twin": "A/A copy",
    "not-checked": "not checked",
    "statistical": "not compared",
    "reference": "one device",
}

SYMBOLS: dict[MarkKind, str] = {
    "equivalent": "✓",
    "not-equivalent": "✗",
    "within-bound": "≈",
    "beyond-bound": "✗",
    "undecidable": "?",
    "control": "\N{EN DASH}",
    "twin": "\N{EN DASH}",
    "not-checked": "\N{EN DASH}",
    "statistical": "\N{EN DASH}",
    "reference": "✓",
}
LEGEND = {
    "✓": "equivalent to one device",
    "≈": "within the compressor's bound",
}
"""Symbol of a mark → its meaning, where that is more than the words of its kind."""

INPUT_BOUND = "input-bound"
HOST_BOUND = "host-bound"
_N_NAMED = 3


def mark_words(row: Row) -> str:
    """Mark of a row in words, and whether its input or its GPUs' host hides how fast it is."""
    bounds = ((INPUT_BOUND, row.input_bound), (HOST_BOUND, row.host_bound))
    return ", ".join([WORDS[row.mark.kind], *(name for name, is_bound in bounds if is_bound)])


def mark_of(records: Sequence[Record]) -> Mark:
    """Mark of one case; one failed check among its repeats outweighs any number of passed ones.

    Args:
        records: all repeats of the case, at least one.
    """
    first = records[0]
    checks = [r.equivalence for r in records if r.equivalence is not None and r.equivalence.checked]
    failed = next((check for check in checks if check.equivalent is False), None)
    shown = failed or next(iter(checks), None)
    if first.is_twin:
        return _mark("twin", "A/A copy of the baseline, not ranked", shown)
    if first.strategy_class == "control":
        return _of_control(first, checks, failed)
    if failed is not None:
        return _mark("not-equivalent", _because(f"{_error(failed)}: differs from one device", failed), failed)
    if first.strategy_class == "statistical":
        return _mark("statistical", "statistical class: compared by loss, not by variables", shown)
    if not checks:
        return _unchecked(records)
    return _of_bounded(checks) if first.strategy_class == "bounded" else _of_exact(checks)


def _of_control(first: Record, checks: Sequence[Equivalence], failed: Equivalence | None) -> Mark:
    passed = next((check for check in checks if check.equivalent is True), None)
    is_blind = failed is None and passed is not None and first.workers * first.replicas > 1
    if failed is not None:
        text = "no communication, and the check finds it: the check can fail"
    else:
        text = "no communication, yet the check passed: it is blind here" if is_blind else "no communication"
    return replace(_mark("control", text, failed or next(iter(checks), None)), blind=is_blind)


def _of_exact(checks: Sequence[Equivalence]) -> Mark:
    undecided = next((check for check in checks if check.equivalent is None), None)
    if undecided is not None:
        return _mark("undecidable", _because("rounding leaves too little to judge", undecided), undecided)
    return _mark("equivalent", _error(checks[0]), checks[0])


def _of_bounded(checks: Sequence[Equivalence]) -> Mark:
    beyond = next((check for check in checks if check.within_bound is False), None)
    if beyond is not None:
        return _mark("beyond-bound", _because("loses more than its compressor's bound", beyond), beyond)
    hidden = next((check for check in checks if check.within_bound is None), None)
    if hidden is not None:
        return _mark("undecidable", _because("loss against the bound cannot be judged", hidden), hidden)
    return _mark("within-bound", f"loss within its compressor's bound{_hidden(checks[0])}", checks[0])


def _unchecked(records: Sequence[Record]) -> Mark:
    if records[0].workers * records[0].replicas == 1:
        return _mark("reference", "one device runs the captured step unchanged", None)
    tried = next((r.equivalence for r in records if r.equivalence and r.equivalence.reason), None)
    return _mark("not-checked", _because("no stored check", tried), None)


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
