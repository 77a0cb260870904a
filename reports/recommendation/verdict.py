"""Verdict on one comparison: the strategy to take for each goal, with its certainty, reasons and warnings.

A strategy wins only if it is proven correct, if every repeat is plausible, and if the interval of its ratio
to every other candidate excludes 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from scipy.special import stdtrit

from harness.records.comparison import MIN_REPEATS_INTERVAL
from reports.contrasts import SIGNIFICANCE, Contrasts
from reports.marks import WORDS
from reports.quantities import MISSING, digits, evidence, plain, spread_of, times
from reports.recommendation import phrases
from reports.recommendation.candidates import (
    Lead,
    SentBytes,
    can_win,
    layer_of,
    lead_of,
    rows_with_too_few,
    sent_by,
)
from reports.rows.report import Advice, Answer, Goal, VerdictKind
from reports.rows.row import Row
from reports.statistics import POWER, Ratio

_MOST_REPEATS = 100
"""Most repeats that a verdict asks for."""


def verdict(
    rows: Sequence[Row],
    contrasts: Contrasts,
    *,
    goal: Goal = "fastest",
    has_faults: bool = False,
) -> Advice:
    """Choose the strategy that serves a goal best among the correct ones.

    Args:
        rows: all rows of one comparison, in falling order of standing.
        goal: question of the headline; the fastest if no figure of the goal is known.
        has_faults: True if faults are injected into some workers.
    """
    if has_faults:
        return _under_faults(rows)
    advice = _fastest(rows, contrasts)
    if advice.kind != "none":
        fastest = Answer(
            goal="fastest",
            text=phrases.FASTEST_TOO.format(claim=advice.claim),
            strategies=advice.leaders,
            certain=advice.kind == "clear",
        )
        cheapest, least = _cheapest(rows, contrasts), _least_network(rows, contrasts)
        details = [*advice.details, *([cheapest.text] if cheapest else [])]
        if least and not set(least.strategies) & set(advice.leaders):
            details.append(least.text)
        answers = tuple(answer for answer in (fastest, cheapest, least) if answer)
        advice = replace(advice, answers=answers, details=tuple(details))
    return advice if goal == "fastest" else _towards(advice, goal)


def _towards(advice: Advice, goal: Goal) -> Advice:
    answer = next((answer for answer in advice.answers if answer.goal == goal), None)
    if answer is None:
        return replace(advice, details=(phrases.NO_ANSWER[goal], *advice.details))
    uncertain: VerdictKind = "together" if len(answer.strategies) > 1 else "no-interval"
    details = (advice.answers[0].text, *(detail for detail in advice.details if detail != answer.text))
    towards = _advice(
        "clear" if answer.certain else uncertain, answer.text, details=details, leaders=answer.strategies
    )
    return replace(towards, goal=goal, answers=advice.answers)


def _advice(
    kind: VerdictKind, claim: str, *, details: Sequence[str] = (), leaders: tuple[str, ...] = ()
) -> Advice:
    headline = f"{phrases.LABELS[kind]}: {claim}"
    return Advice(kind=kind, headline=headline, details=tuple(details), leaders=leaders)


def _under_faults(rows: Sequence[Row]) -> Advice:
    metrics = dict.fromkeys(name for row in rows for name in row.metrics)
    claim = phrases.UNDER_FAULTS.format(metrics=_and(list(metrics)))
    return _advice("none", claim if metrics else phrases.UNDER_FAULTS_UNMEASURED)


def _fastest(rows: Sequence[Row], contrasts: Contrasts) -> Advice:
    candidates = [row for row in rows if can_win(row)]
    if len(candidates) < 2:
        names = tuple(row.strategy for row in candidates)
        claim = phrases.ONLY_ONE.format(leader=names[0]) if names else phrases.NO_CANDIDATE
        outside = _outside(rows, candidates[0] if candidates else None, contrasts)
        return _advice("none", claim, details=outside, leaders=names)
    leader = candidates[0]
    lead = lead_of(candidates, contrasts)
    reasons: list[str] = []
    match lead.kind:
        case "no-interval":
            claim = _no_interval(rows, leader, candidates[1], contrasts)
        case "together":
            claim, reasons = _tie(rows, lead, contrasts)
        case "clear":
            claim = _clear(rows, leader, candidates[1], contrasts)
    return _advice(
        lead.kind, claim, details=(*reasons, *_outside(rows, leader, contrasts)), leaders=lead.strategies
    )


def _no_interval(rows: Sequence[Row], leader: Row, second: Row, contrasts: Contrasts) -> str:
    against = _against_baseline(rows, leader) or _against_next(leader, second, contrasts)
    return phrases.NO_INTERVAL.format(leader=leader.strategy, ratio=against, least=MIN_REPEATS_INTERVAL)


def _clear(rows: Sequence[Row], leader: Row, second: Row, contrasts: Contrasts) -> str:
    against = "" if second.is_baseline else _against_baseline(rows, leader)
    ratios = filter(None, (against, _against_next(leader, second, contrasts)))
    claim = phrases.FASTEST.format(leader=leader.strategy, ratios=", ".join(ratios))
    return f"{claim}; {phrases.ONE_DEVICE}" if leader.mark.kind == "reference" else claim


def _against_next(leader: Row, second: Row, contrasts: Contrasts) -> str:
    name = second.strategy if second.is_baseline else phrases.NEXT.format(name=second.strategy)
    return _ratio(contrasts.of(leader.strategy, second.strategy), name)


def _tie(rows: Sequence[Row], lead: Lead, contrasts: Contrasts) -> tuple[str, list[str]]:
    level = (lead.leader, *lead.level)
    first, last = level[0], level[-1]
    pair = contrasts.of(first.strategy, last.strategy)
    is_whole = len(level) == 2 and (first.is_baseline or last.is_baseline)
    if is_whole:
        ratio = _ratio(pair)
    else:
        against = _against_baseline(rows, first) or _ratio(pair, last.strategy)
        ratio = f"{first.strategy} {against}"
    few = rows_with_too_few(lead, contrasts)
    claim = phrases.TIED.format(
        names=_and(lead.strategies),
        ratio=ratio,
        decides=phrases.TOO_FEW_REPEATS.format(names=_and(few)) if few else _decides(pair, contrasts),
    )
    details = tie_details(level, contrasts)
    return claim, details[1:] if is_whole else details


def _decides(pair: Ratio | None, contrasts: Contrasts) -> str:
    n = None if pair is None else enough_repeats(pair, n_tests=contrasts.n_tests)
    phrase = phrases.TOO_MANY_TO_DECIDE if n is None else phrases.REPEATS_TO_DECIDE
    return phrase.format(n=n or _MOST_REPEATS)


def _against_baseline(rows: Sequence[Row], row: Row) -> str:
    base = next((other.strategy for other in rows if other.is_baseline), "")
    return _ratio(row.ratio, base) if row.ratio and base else ""


def tie_details(level: Sequence[Row], contrasts: Contrasts) -> list[str]:
    """Lines on tied strategies: the ratio of first to last, and of the nearly significant ones.

    Args:
        level: tied rows, at least two, fastest first.
    """
    leader, last = level[0].strategy, level[-1].strategy
    lines = []
    for name in (last, *(row.strategy for row in level[1:-1])):
        ratio, why = contrasts.of(leader, name), why_together(leader, name, contrasts)
        if ratio is not None and (why or name == last):
            lines.append(f"{leader} {_ratio(ratio, name)}")
        lines += [why] if why else []
    return lines


def why_together(first: str, second: str, contrasts: Contrasts) -> str:
    """Reason why two are tied although the CI of their ratio excludes 1; empty if it does not."""
    lead, p = contrasts.of(first, second), contrasts.p_of(first, second)
    if lead is None or lead.interval is None or lead.interval.contains(1.0):
        return ""
    if lead.p_value is None or p is None or p <= SIGNIFICANCE:
        return ""
    phrase = phrases.NOT_SIGNIFICANT if contrasts.n_tests == 1 else phrases.NOT_SIGNIFICANT_CORRECTED
    return phrase.format(
        first=first,
        second=second,
        p=digits(lead.p_value, significant=2),
        n=contrasts.n_tests,
        corrected=digits(p, significant=2),
    )


def enough_repeats(figure: Ratio, *, n_tests: int = 1) -> int | None:
    """Repeats that would show a difference as large as this one with a power of 80 %.

    The estimate takes spread and difference of the present repeats for the true ones, and corrects p by
    Bonferroni over all tests of the table.

    Returns:
        More than the present number; None if above the most to wait for, or if the spread is unknown.
    """
    if figure.error is None or figure.freedom is None or not 0.0 < figure.value < math.inf:
        return None
    n = min(figure.n, figure.n_baseline)
    apart = abs(math.log(figure.value))
    if apart == 0.0:
        return None
    for more in range(n + 1, _MOST_REPEATS + 1):
        freedom = figure.freedom * (more - 1) / (n - 1)
        needed = stdtrit(freedom, 1 - SIGNIFICANCE / n_tests / 2) + stdtrit(freedom, POWER)
        if float(needed) * figure.error * math.sqrt(n / more) <= apart:
            return more
    return None


def _cheapest(rows: Sequence[Row], contrasts: Contrasts) -> Answer | None:
    prices = {row.strategy: price for row in rows if (price := row.price_per_hour) and price > 0.0}
    priced = sorted(
        (row for row in rows if can_win(row) and row.strategy in prices and row.cost_per_million),
        key=lambda row: -_standing(row) / prices[row.strategy],
    )
    if len(priced) < 2:
        return None
    per_price = contrasts.per_price(prices)
    lead = lead_of(priced, per_price)
    cost = lead.leader.cost_per_million
    # Without a cost it would be none of these.
    assert cost is not None
    text = phrases.CHEAPEST[lead.kind].format(
        leader=lead.leader.strategy,
        cost=f"{plain(cost.value)} per million examples ({spread_of(cost)})",
        names=_and(lead.strategies),
    )
    if few := rows_with_too_few(lead, per_price):
        text = f"{text}; {phrases.TOO_FEW_REPEATS.format(names=_and(few))}"
    return Answer(goal="cheapest", text=text, strategies=lead.strategies, certain=lead.kind == "clear")


def _standing(row: Row) -> float:
    """Figure by which rows are sorted: the ratio to the baseline, or the rate without one."""
    if row.ratio is not None:
        return row.ratio.value
    return 1.0 if row.is_baseline or row.rate is None else row.rate.value


def _least_network(rows: Sequence[Row], contrasts: Contrasts) -> Answer | None:
    candidates = [row for row in rows if can_win(row)]
    layer = layer_of(candidates)
    sent = [
        (figure, row)
        for row in candidates
        if (figure := sent_by(row, layer)) is not None and figure.mean.value > 0
    ]
    if len(sent) < 2:
        return None
    fewest, least = min(sent, key=lambda item: item[0].mean.value)
    level = [(figure, row) for figure, row in sent if row is not least and not fewest.is_surely_less(figure)]
    how = "predicted" if layer == "payload" else "over TCP"
    fastest = candidates[0]
    ratio = None if least is fastest else contrasts.of(least.strategy, fastest.strategy)
    names = (least.strategy, *(row.strategy for _, row in level))
    text = (phrases.BYTES_TIED if level else phrases.LEAST_NETWORK).format(
        leader=least.strategy,
        names=_and(names),
        figure=f"{fewest.text} per step {how} ({spread_of(fewest.mean, unit='bytes')})",
        rate="" if ratio is None else f", {_ratio(ratio, fastest.strategy)}",
    )
    text = "; ".join((text, *_why_tied_in_bytes(fewest, level)))
    return Answer(goal="network", text=text, strategies=names, certain=not level)


def _why_tied_in_bytes(fewest: SentBytes, level: Sequence[tuple[SentBytes, Row]]) -> tuple[str, ...]:
    if bounded := [row.strategy for figure, row in level if figure.is_bound]:
        return (phrases.BYTES_BOUNDED.format(bounded=_and(bounded)),)
    counted = [figure for figure in (fewest, *(figure for figure, _ in level[:1])) if not figure.is_predicted]
    if level and any(figure.mean.n < MIN_REPEATS_INTERVAL for figure in counted):
        return (phrases.BYTES_TOO_FEW,)
    return ()


def _outside(rows: Sequence[Row], leader: Row | None, contrasts: Contrasts) -> tuple[str, ...]:
    """Lines on unranked rows with figures ahead of the leader's.

    Args:
        leader: leading row; None if no row may win, so that all others are named.
    """
    named: dict[str, list[str]] = {}
    for row in rows:
        if row.status != "ok" or row.rate is None or row.mark.proven or row.mark.kind == "twin":
            continue
        how = phrases.MEASURED if leader is None else _beside_leader(row, leader, contrasts)
        if how is not None:
            named.setdefault(how, []).append(f"{row.strategy} ({WORDS[row.mark.kind]})")
    return tuple(phrases.NOT_RANKED.format(how=how, names=", ".join(names)) for how, names in named.items())


def _beside_leader(row: Row, leader: Row, contrasts: Contrasts) -> str | None:
    lead = contrasts.of(row.strategy, leader.strategy)
    if lead is None or lead.value <= 1.0:
        return None
    if contrasts.ahead(row.strategy, leader.strategy):
        return phrases.FASTER
    return phrases.FASTER_WITHOUT_INTERVAL if lead.interval is None else phrases.NOT_DIFFERENT


def _ratio(figure: Ratio | None, other: str = "") -> str:
    """A ratio to another strategy, as in `1.05× single (CI 0.880–1.25, n = 3)`."""
    if figure is None:
        return MISSING
    return f"{' '.join(filter(None, (times(figure.value), other)))} ({evidence(figure)})"


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else ""
