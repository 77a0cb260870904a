"""The equivalence mark of a case: what the check said, and what that means for a reader."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from harness.records import Equivalence, Record
from reports.quantities import error
from reports.rows import Mark, MarkKind

WORDS: dict[MarkKind, str] = {
    "equivalent": "equivalent",
    "not-equivalent": "NOT equivalent",
    "undecidable": "undecidable",
    "control": "control",
    "not-checked": "not checked",
    "statistical": "not held to it",
    "reference": "one device",
}

_N_NAMED = 3


def mark_of(records: Sequence[Record]) -> Mark:
    """The mark of one case; one failed check among its repeats outweighs any number of passed ones.

    Args:
        records: all repeats of the case, at least one.
    """
    checks = [r.equivalence for r in records if r.equivalence is not None and r.equivalence.checked]
    failed = [check for check in checks if check.equivalent is False]
    undecided = [check for check in checks if check.equivalent is None]
    passed = [check for check in checks if check.equivalent is True]
    shown = next(iter((*failed, *undecided, *passed)), None)
    first = records[0]
    if first.strategy_class == "control":
        blind = bool(passed) and not failed and first.workers * first.replicas > 1
        return dataclasses.replace(
            _mark("control", _control(failed=bool(failed), blind=blind), shown), blind=blind
        )
    if failed:
        wrong = f"{_numbers(failed[0])} It does not compute what one device computes"
        return _mark("not-equivalent", f"{wrong}{_because(failed[0])}.", shown)
    if first.strategy_class == "statistical":
        return _mark(
            "statistical", "Of class statistical: held to reaching a loss, not to equal variables.", shown
        )
    if undecided:
        return _mark(
            "undecidable",
            f"Compared with one device, but rounding leaves too little to judge{_because(undecided[0])}.",
            shown,
        )
    if passed:
        return _mark("equivalent", _numbers(passed[0]), shown)
    return _unchecked(first)


def _unchecked(first: Record) -> Mark:
    if first.workers * first.replicas == 1:
        return _mark(
            "reference", "One device runs the captured step unchanged, so there is nothing to diverge.", None
        )
    return _mark("not-checked", "No stored check says whether it computes the right thing.", None)


def _control(*, failed: bool, blind: bool) -> str:
    if failed:
        return "Sends nothing and must not agree with the reference; it does not, so the check can fail."
    if blind:
        return (
            "A control must not agree with the reference, yet the check passed: it is blind on this workload."
        )
    return "Sends nothing; never a candidate."


def _numbers(check: Equivalence) -> str:
    measured = (
        f"Update error of the variable or slot nearest to its limit: {error(check.max_update_error)}, "
        f"its tolerance: {error(check.tolerance)}."
    )
    if not check.undecidable:
        return measured
    n = len(check.undecidable)
    names = ", ".join(check.undecidable[:_N_NAMED])
    return f"{measured} Rounding hides {n} more: {names}{', …' if n > _N_NAMED else ''}."


def _because(check: Equivalence) -> str:
    return f": {check.reason}" if check.reason else ""


def _mark(kind: MarkKind, explanation: str, check: Equivalence | None) -> Mark:
    return Mark(
        kind=kind,
        explanation=explanation,
        max_update_error=check.max_update_error if check else None,
        noise_floor=check.noise_floor if check else None,
        tolerance=check.tolerance if check else None,
        undecidable=check.undecidable if check else (),
    )
