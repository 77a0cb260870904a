"""One sentence per workload: which strategy to take, by how much, and what it sends.

A strategy may win only when it is proven to compute the right thing, when every repeat was plausible, and
when the interval of its ratio to every other candidate excludes 1. Anything less is said as what it is:
strategies that rank together, a figure without an interval, or no winner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from reports.contrasts import Contrasts
from reports.quantities import byte_count, limits, plain, times
from reports.rows import Advice, Row
from reports.statistics import Ratio

_EMULATED = "Of the processors that emulate TPU cores, and of no TPU: there the order may be another one."


def can_win(row: Row) -> bool:
    """Whether a row may be called fastest: plausible figures, and shown to compute the right thing."""
    return row.status == "ok" and row.rate is not None and row.mark.proven


def together(first: Row, second: Row, contrasts: Contrasts) -> bool:
    """Whether the repeats cannot tell two rows apart.

    Args:
        first: the row that stands higher, with an interval.
        second: the other one; without an interval it counts as apart only when its figure lies below
            `first`'s interval.
    """
    if first.rate is None or second.rate is None or first.rate.interval is None:
        return True
    if second.rate.interval is None:
        return second.rate.value >= first.rate.interval.low
    return not contrasts.ahead(first.strategy, second.strategy)


def ranks(rows: Sequence[Row], contrasts: Contrasts) -> dict[str, int]:
    """Rank of each candidate with an interval; those that cannot be told apart from the head of a group
    share its rank.

    Args:
        rows: in falling order of standing.
    """
    by_strategy: dict[str, int] = {}
    head: Row | None = None
    candidates = [
        row for row in rows if can_win(row) and row.rate is not None and row.rate.interval is not None
    ]
    for place, row in enumerate(candidates, start=1):
        if head is not None and together(head, row, contrasts):
            by_strategy[row.strategy] = by_strategy[head.strategy]
        else:
            by_strategy[row.strategy], head = place, row
    return by_strategy


def verdict(
    rows: Sequence[Row], contrasts: Contrasts, *, is_emulated: bool = False, has_faults: bool = False
) -> Advice:
    """Say which strategy is fastest among those that compute the right thing.

    Args:
        rows: of one workload and shape, in falling order of standing.
        is_emulated: their devices stood for others, of which rates tell nothing.
        has_faults: some of their workers do not do what they should.
    """
    if has_faults:
        return _under_faults(rows)
    advice = _fastest(rows, contrasts)
    first = (_EMULATED,) if is_emulated else ()
    return replace(advice, details=(*first, *advice.details, *_cheapest(rows, contrasts)))


def _under_faults(rows: Sequence[Row]) -> Advice:
    """With faults nobody computes what one device would: it matters how good the model becomes."""
    metrics = dict.fromkeys(name for row in rows for name in row.metrics)
    seen = (
        f"see {' and '.join(metrics)} under faults"
        if metrics
        else "measure.evaluate tells how good it becomes"
    )
    broken = [row.strategy for row in rows if row.status != "ok" and row.problems]
    return Advice(
        kind="none",
        headline=f"With faults no strategy computes what one device would; {seen}.",
        details=(f"Without a result: {', '.join(broken)}.",) if broken else (),
        leaders=(),
    )


def _cheapest(rows: Sequence[Row], contrasts: Contrasts) -> tuple[str, ...]:
    """What a million examples cost at least, where prices are known."""
    priced = [(row.cost_per_million.value, row) for row in rows if can_win(row) and row.cost_per_million]
    if len(priced) < 2:
        return ()
    cost, least = min(priced, key=lambda item: item[0])
    level = [row.strategy for _, row in priced if row is not least and not _is_cheaper(least, row, contrasts)]
    price = f"{plain(cost)} per million examples"
    if not level:
        return (f"Cheapest: {least.strategy}, at {price}.",)
    names = " or ".join([least.strategy, *level])
    return (f"Cheapest: {names}, which these repeats cannot tell apart; {least.strategy} costs {price}.",)


def _is_cheaper(row: Row, other: Row, contrasts: Contrasts) -> bool:
    """Whether the repeats show that a row takes examples for less than another."""
    lead = contrasts.of(row.strategy, other.strategy)
    if lead is None or lead.interval is None or not row.price_per_hour or not other.price_per_hour:
        return False
    return lead.interval.low * other.price_per_hour / row.price_per_hour > 1.0


def _fastest(rows: Sequence[Row], contrasts: Contrasts) -> Advice:
    candidates = [row for row in rows if can_win(row)]
    if not candidates:
        return Advice(
            kind="none",
            headline="No winner: no strategy was both measured and shown to compute the right thing.",
            details=_outside(rows, None),
            leaders=(),
        )
    leader = candidates[0]
    if len(candidates) == 1:
        return _only(rows, leader)
    if leader.rate is None or leader.rate.interval is None:
        return _without_interval(rows, candidates)
    level = [leader, *(row for row in candidates[1:] if together(leader, row, contrasts))]
    if len(level) > 1:
        return _level(rows, level, contrasts)
    return _clear(rows, candidates, contrasts)


def _only(rows: Sequence[Row], leader: Row) -> Advice:
    return Advice(
        kind="none",
        headline=f"No comparison: only {leader.strategy} was measured and shown to compute the right thing.",
        details=(*_wire([leader]), *_outside(rows, leader)),
        leaders=(leader.strategy,),
    )


def _without_interval(rows: Sequence[Row], candidates: Sequence[Row]) -> Advice:
    leader = candidates[0]
    return Advice(
        kind="no-interval",
        headline=(
            f"No winner declared: {leader.strategy} has the highest figure, "
            f"but n={leader.n} gives no interval."
        ),
        details=(
            *_against_baseline(rows, leader),
            "Run at least 3 repeats for an interval.",
            *_wire([candidates[1] if leader.is_baseline else leader]),
            *_outside(rows, leader),
        ),
        leaders=(leader.strategy,),
    )


def _level(rows: Sequence[Row], level: Sequence[Row], contrasts: Contrasts) -> Advice:
    names = [row.strategy for row in level]
    joined = f"{', '.join(names[:-1])} and {names[-1]}"
    gap = contrasts.of(names[0], names[-1])
    return Advice(
        kind="together",
        headline=f"{joined} rank together: these repeats cannot tell them apart.",
        details=(
            *(() if gap is None else _gap(names[0], names[-1], gap)),
            *_against_baseline(rows, level[0]),
            *_wire(level),
            *_outside(rows, level[0]),
        ),
        leaders=tuple(names),
    )


def _clear(rows: Sequence[Row], candidates: Sequence[Row], contrasts: Contrasts) -> Advice:
    leader, second = candidates[0], candidates[1]
    if leader.is_baseline:
        headline = f"{leader.strategy}, the baseline, is fastest: nothing else pays off here."
        details = [f"Best of the others is {second.strategy}{_at_ratio(second, leader.strategy)}."]
    else:
        base = next((row.strategy for row in rows if row.is_baseline), None)
        headline = f"{leader.strategy} is fastest{_at_ratio(leader, base)}."
        details = []
        if not second.is_baseline:
            lead = contrasts.of(leader.strategy, second.strategy)
            if lead is not None:
                phrase = _phrase(lead, second.strategy)
                details.append(f"Next is {second.strategy}: {leader.strategy} runs at {phrase}.")
    details.extend(_wire([second if leader.is_baseline else leader]))
    return Advice(
        kind="clear",
        headline=headline,
        details=(*details, *_outside(rows, leader)),
        leaders=(leader.strategy,),
    )


def _gap(highest: str, lowest: str, figure: Ratio) -> tuple[str, ...]:
    """How far apart strategies are that rank together, and how small a gap would have been seen."""
    least = figure.least_effect
    seen = "" if least is None else f"; a difference of {least - 1:.0%} would most likely have been seen"
    return (
        f"From the highest figure to the lowest of them: {highest} runs at {_phrase(figure, lowest)}{seen}.",
    )


def _phrase(figure: Ratio, of: str) -> str:
    """A ratio in words, with its interval and n."""
    inside = f"95 % interval {limits(figure.interval)}" if figure.interval else "no interval"
    counts = f"n={figure.n}" if figure.n == figure.n_baseline else f"n={figure.n} against {figure.n_baseline}"
    return f"{times(figure.value)} the rate of {of} ({inside}, {counts})"


def _at_ratio(row: Row, base: str | None) -> str:
    return f", at {_phrase(row.ratio, base)}" if row.ratio is not None and base is not None else ""


def _against_baseline(rows: Sequence[Row], row: Row) -> tuple[str, ...]:
    """How a row stands against the baseline; nothing for the baseline itself."""
    base = next((other.strategy for other in rows if other.is_baseline), None)
    if row.ratio is None or base is None:
        return ()
    return (f"{row.strategy} runs at {_phrase(row.ratio, base)}.",)


def _wire(rows: Sequence[Row]) -> tuple[str, ...]:
    """What each row sends per step, predicted and measured, in one sentence."""
    return (f"Sent per step, all workers together: {'; '.join(_sent(row) for row in rows)}.",)


def _sent(row: Row) -> str:
    figures = [mean.value for mean in (row.payload_bytes, row.tcp_bytes) if mean is not None]
    if not figures:
        return f"{row.strategy} not stored"
    if not any(figures):
        return f"{row.strategy} nothing"
    payload = byte_count(row.payload_bytes.value) if row.payload_bytes else "not stored"
    if row.tcp_bytes is None:
        return f"{row.strategy} {payload} predicted, TCP not measured"
    apart = f"{times(row.tcp_over_payload, significant=4)} " if row.tcp_over_payload else ""
    sent = byte_count(row.tcp_bytes.value)
    at_most = " at most" if row.payload_is_bound else ""
    return f"{row.strategy} {sent} over TCP ({apart}the predicted payload of{at_most} {payload})"


def _outside(rows: Sequence[Row], leader: Row | None) -> tuple[str, ...]:
    """Rows faster than the leader that may not win, each with its reason; then those without a result."""
    floor = leader.rate.value if leader is not None and leader.rate is not None else 0.0
    reasons = {
        "control": "a control: the rate if communication cost nothing",
        "not-equivalent": "NOT equivalent to the reference",
        "beyond-bound": "BEYOND what its compressors may lose",
        "undecidable": "undecidable: rounding hides whether it computes the right thing",
        "not-checked": "not checked for equivalence",
        "statistical": "of a class that is not held to equivalence",
    }
    ahead = [
        f"{row.strategy} ({reasons[row.mark.kind]})"
        for row in rows
        if row.status == "ok" and row.rate is not None and row.mark.kind in reasons and row.rate.value > floor
    ]
    lacking = [f"{row.strategy} ({row.status})" for row in rows if row.status != "ok"]
    what = "Faster, but cannot win" if leader is not None else "Measured, but cannot win"
    sentences = [f"{what}: {'; '.join(ahead)}."] if ahead else []
    return (*sentences, f"Without a result to rank: {', '.join(lacking)}.") if lacking else tuple(sentences)
