"""The equivalence mark of a case: what the check said, and what that means for a reader."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

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
    "✗": "not equivalent",
    "?": "undecidable",
    "\N{EN DASH}": "control or not checked",
}
"""Symbol of a mark → its meaning."""

INPUT_BOUND = "input-bound"
HOST_BOUND = "host-bound"
_N_NAMED = 3


def mark_words(row: Row) -> str:
    """The mark of a row in words, and whether its input or its GPUs' host hides how fast it is."""
    bounds = ((INPUT_BOUND, row.input_bound), (HOST_BOUND, row.host_bound))
    return ", ".join([WORDS[row.mark.kind], *(name for name, is_bound in bounds if is_bound)])


def mark_of(records: Sequence[Record]) -> Mark:
    """The mark of one case; one failed check among its repeats outweighs any number of passed ones.

    Args:
        records: all repeats of the case, at least one.
    """
    checks = [r.equivalence for r in records if r.equivalence is not None and r.equivalence.checked]
    first = records[0]
    if first.is_twin:
        return _mark("twin", "The baseline once more; never a candidate.", next(iter(checks), None))
    if first.strategy_class == "control":
        return _of_control(checks, distributed=first.workers * first.replicas > 1)
    if any(check.equivalent is False for check in checks):
        return _of_exact(checks)
    if first.strategy_class == "statistical":
        shown = next(iter(checks), None)
        return _mark(
            "statistical", "Of class statistical: held to reaching a loss, not to equal variables.", shown
        )
    if not checks:
        return _unchecked(records)
    return _of_bounded(checks) if first.strategy_class == "bounded" else _of_exact(checks)


def _of_control(checks: Sequence[Equivalence], *, distributed: bool) -> Mark:
    failed = [check for check in checks if check.equivalent is False]
    passed = [check for check in checks if check.equivalent is True]
    blind = bool(passed) and not failed and distributed
    shown = next(iter((*failed, *checks)), None)
    return dataclasses.replace(
        _mark("control", _control(failed=bool(failed), blind=blind), shown), blind=blind
    )


def _of_exact(checks: Sequence[Equivalence]) -> Mark:
    failed = next((check for check in checks if check.equivalent is False), None)
    if failed is not None:
        wrong = f"{_numbers(failed)} It does not compute what one device computes"
        return _mark("not-equivalent", f"{wrong}{_because(failed)}.", failed)
    undecided = next((check for check in checks if check.equivalent is None), None)
    if undecided is not None:
        return _mark(
            "undecidable",
            f"Compared with one device, but rounding leaves too little to judge{_because(undecided)}.",
            undecided,
        )
    return _mark("equivalent", _numbers(checks[0]), checks[0])


def _of_bounded(checks: Sequence[Equivalence]) -> Mark:
    beyond = next((check for check in checks if check.within_bound is False), None)
    if beyond is not None:
        return _mark("beyond-bound", f"It loses more than its compressors state{_because(beyond)}.", beyond)
    hidden = next((check for check in checks if check.within_bound is None), None)
    if hidden is not None:
        return _mark(
            "undecidable",
            f"Held to what its compressors may lose, but that cannot be judged{_because(hidden)}.",
            hidden,
        )
    return _mark(
        "within-bound",
        "What it lost of gradients is within what its compressors state, and all else as on one device."
        + _hidden(checks[0]),
        checks[0],
    )


def _unchecked(records: Sequence[Record]) -> Mark:
    first = records[0]
    if first.workers * first.replicas == 1:
        return _mark(
            "reference", "One device runs the captured step unchanged, so there is nothing to diverge.", None
        )
    tried = next((r.equivalence for r in records if r.equivalence and r.equivalence.reason), None)
    because = "" if tried is None else _because(tried)
    return _mark("not-checked", f"No stored check says whether it computes the right thing{because}.", None)


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
    return _where(check) + measured + _hidden(check)


def _where(check: Equivalence) -> str:
    if check.dtype == "model":
        return ""
    return "Judged in float64, all workers in one process: in the model's own types rounding hides too much. "


def _hidden(check: Equivalence) -> str:
    n = len(check.undecidable)
    names = ", ".join(check.undecidable[:_N_NAMED])
    return f" Rounding hides {n} more: {names}{', …' if n > _N_NAMED else ''}." if n else ""


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
