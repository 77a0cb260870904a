"""Verdict on one comparison: the strategy to take for each goal, with its certainty, reasons and warnings.

A strategy may win only when it is proven to compute the right thing, when every repeat was plausible, and
when the interval of its ratio to every other candidate excludes 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from scipy.special import stdtrit

from harness.records.comparison import MIN_REPEATS_INTERVAL
from reports.contrasts import SIGNIFICANCE, Contrasts
from reports.quantities import byte_count, digits, limits, plain, spread_of, times
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
from reports.rows.report import Advice, Answer, ByteLayer, Goal
from reports.rows.row import Row
from reports.shapes import BASELINE
from reports.statistics import POWER, Ratio

_MOST_REPEATS = 100
"""Beyond that nobody would wait: the difference is named as too small instead."""


def verdict(
    rows: Sequence[Row],
    contrasts: Contrasts,
    *,
    goal: Goal = "fastest",
    is_emulated: bool = False,
    has_faults: bool = False,
) -> Advice:
    """Say which strategy serves a goal best among those that compute the right thing.

    Args:
        rows: of one workload and shape, in falling order of standing.
        goal: what the headline answers; the fastest where nothing is known of it.
        is_emulated: their devices stood for others, whose rates are unknown.
        has_faults: some of their workers do not do what they should.
    """
    if has_faults:
        return _under_faults(rows)
    advice = _fastest(rows, contrasts)
    if advice.kind != "none":
        fastest = Answer(
            goal="fastest",
            text=advice.headline,
            strategies=advice.leaders,
            certain=advice.kind == "clear",
        )
        others = (_cheapest(rows, contrasts), _least_network(rows, contrasts))
        answers = (fastest, *(answer for answer in others if answer is not None))
        # The strategy that sends least is told where it is not among the fastest.
        further = tuple(
            answer.text
            for answer in answers
            if answer.goal == "cheapest"
            or (answer.goal == "network" and not set(answer.strategies) & set(advice.leaders))
        )
        advice = replace(advice, answers=answers, details=(*advice.details, *further))
    if goal != "fastest":
        advice = _towards(advice, goal)
    return replace(advice, details=(phrases.EMULATED, *advice.details)) if is_emulated else advice


def _towards(advice: Advice, goal: Goal) -> Advice:
    answer = next((answer for answer in advice.answers if answer.goal == goal), None)
    if answer is None:
        return replace(advice, details=(phrases.NO_ANSWER[goal], *advice.details))
    rest = tuple(detail for detail in advice.details if detail != answer.text)
    is_tie = len(answer.strategies) > 1
    return replace(
        advice,
        kind="clear" if answer.certain else "together" if is_tie else "no-interval",
        headline=answer.text,
        details=(advice.headline, *rest),
        leaders=answer.strategies,
        goal=goal,
    )


def _under_faults(rows: Sequence[Row]) -> Advice:
    metrics = dict.fromkeys(name for row in rows for name in row.metrics)
    broken = [row.strategy for row in rows if row.status != "ok" and row.problems]
    return Advice(
        kind="none",
        headline=phrases.UNDER_FAULTS.format(metrics=_and(list(metrics)))
        if metrics
        else phrases.UNDER_FAULTS_UNMEASURED,
        details=(phrases.WITHOUT_RESULT.format(names=", ".join(broken)),) if broken else (),
        leaders=(),
    )


def _fastest(rows: Sequence[Row], contrasts: Contrasts) -> Advice:
    candidates = [row for row in rows if can_win(row)]
    if not candidates:
        return Advice(
            kind="none", headline=phrases.NO_CANDIDATE, details=_outside(rows, None, contrasts), leaders=()
        )
    leader = candidates[0]
    if len(candidates) == 1:
        return Advice(
            kind="none",
            headline=phrases.ONLY_ONE.format(leader=leader.strategy),
            details=(_sent([leader]), *_outside(rows, leader, contrasts)),
            leaders=(leader.strategy,),
        )
    lead = lead_of(candidates, contrasts)
    match lead.kind:
        case "no-interval":
            headline = phrases.NO_INTERVAL.format(leader=leader.strategy, n=leader.n)
            sender = candidates[1] if leader.is_baseline else leader
            reasons = [*_against_baseline(rows, leader), phrases.MORE_REPEATS, _sent([sender])]
        case "together":
            headline = phrases.NO_DIFFERENCE.format(names=_and(lead.strategies), counts=_counts(lead))
            reasons = _reasons_of_tie(rows, lead, contrasts)
        case "clear":
            headline, reasons = _clear(rows, candidates, contrasts)
    return Advice(
        kind=lead.kind,
        headline=headline,
        details=(*reasons, *_outside(rows, leader, contrasts)),
        leaders=lead.strategies,
    )


def _clear(rows: Sequence[Row], candidates: Sequence[Row], contrasts: Contrasts) -> tuple[str, list[str]]:
    leader, second = candidates[0], candidates[1]
    sent = _sent([second if leader.is_baseline else leader])
    ratio = contrasts.of(leader.strategy, second.strategy)
    # A lead without a ratio would be none.
    assert ratio is not None
    if leader.is_baseline and leader.strategy == BASELINE:
        reasons = []
        if second.ratio is not None:
            reasons.append(
                phrases.BEST_OF_OTHERS.format(
                    name=second.strategy, ratio=_ratio(second.ratio), other=leader.strategy
                )
            )
        return phrases.NOTHING_PAYS.format(leader=leader.strategy), [*reasons, sent]
    phrase = phrases.FASTEST_BEFORE_BASELINE if second.is_baseline else phrases.FASTEST
    name = f"{leader.strategy}, the baseline," if leader.is_baseline else leader.strategy
    headline = phrase.format(leader=name, ratio=_ratio(ratio), second=second.strategy)
    against = () if second.is_baseline else _against_baseline(rows, leader)
    return headline, [*against, *bytes_beside(leader, second), sent]


def _reasons_of_tie(rows: Sequence[Row], lead: Lead, contrasts: Contrasts) -> list[str]:
    level = (lead.leader, *lead.level)
    ties = tie_sentences(level, contrasts)
    few = rows_with_too_few(lead, contrasts)
    return [
        *ties,
        *([phrases.TOO_FEW_REPEATS.format(names=_and(few))] if few else []),
        *(text for text in _against_baseline(rows, lead.leader) if text not in ties),
        _sent(level),
    ]


def _against_baseline(rows: Sequence[Row], row: Row) -> tuple[str, ...]:
    base = next((other.strategy for other in rows if other.is_baseline), None)
    if row.ratio is None or base is None:
        return ()
    return (phrases.RUNS_AT.format(name=row.strategy, ratio=_ratio(row.ratio), other=base),)


def tie_sentences(level: Sequence[Row], contrasts: Contrasts) -> tuple[str, ...]:
    """Sentences on strategies that rank together: how far apart they are, and what would distinguish them.

    Args:
        level: at least two, in falling order of standing.
    """
    leader, last = level[0].strategy, level[-1].strategy
    gap = contrasts.of(leader, last)
    sentences = []
    for row in (level[-1], *level[1:-1]):
        ratio, why = contrasts.of(leader, row.strategy), why_together(leader, row.strategy, contrasts)
        if ratio is not None and (why or row is level[-1]):
            sentences.append(phrases.RUNS_AT.format(name=leader, ratio=_ratio(ratio), other=row.strategy))
        sentences += [why] if why else []
    if gap is not None and gap.interval is not None:
        n = enough_repeats(gap, n_tests=contrasts.n_tests)
        phrase = phrases.TOO_MANY_TO_DECIDE if n is None else phrases.REPEATS_TO_DECIDE
        sentences.append(phrase.format(n=n or _MOST_REPEATS, first=leader, second=last))
    return tuple(sentences)


def why_together(first: str, second: str, contrasts: Contrasts) -> str:
    """Reason two rank together although the interval of their ratio excludes 1; empty if it does not."""
    lead, p = contrasts.of(first, second), contrasts.p_of(first, second)
    if lead is None or lead.interval is None or lead.interval.contains(1.0):
        return ""
    if lead.p_value is None or p is None or p <= SIGNIFICANCE:
        return ""
    if lead.p_value <= SIGNIFICANCE:
        phrase = phrases.DISTINGUISHED_ALONE
    elif contrasts.n_tests == 1:
        phrase = phrases.NOT_DISTINGUISHED
    else:
        phrase = phrases.NOT_DISTINGUISHED_EITHER_WAY
    return phrase.format(
        first=first,
        second=second,
        p=digits(lead.p_value, significant=2),
        n=contrasts.n_tests,
        corrected=digits(p, significant=2),
    )


def enough_repeats(figure: Ratio, *, n_tests: int = 1) -> int | None:
    """Repeats that tell a difference as large as this one from none, four times in five.

    It is a plain estimate: it takes the spread and the difference of these repeats for the true ones, and p
    to be corrected for all tests of the table at once (Bonferroni), which is never less than what is done.

    Returns:
        More than there are; None where they are too many to wait for, or nothing is known of the spread.
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


def bytes_beside(row: Row, other: Row) -> tuple[str, ...]:
    """Phrase with the factor by which a row sends fewer or more bytes than another.

    Returns:
        Nothing unless both send something, neither figure is a bound, and repeats show the difference.
    """
    layer = layer_of((row, other))
    own, others = sent_by(row, layer), sent_by(other, layer)
    if own is None or others is None or own.is_bound or others.is_bound:
        return ()
    if min(own.mean.low, others.mean.low) <= 0:
        return ()
    if not (own.is_surely_less(others) or others.is_surely_less(own)):
        return ()
    quotient = own.mean.value / others.mean.value
    percent = round(100 * abs(1 - quotient))
    if not percent:
        return ()
    if quotient >= 2:
        phrase, share = phrases.SENDS_TIMES, times(quotient)
    else:
        phrase, share = phrases.SENDS_FEWER if quotient < 1 else phrases.SENDS_MORE, f"{percent} %"
    how = phrases.BY_PREDICTION if layer == "payload" else ""
    return (phrase.format(name=row.strategy, share=share, other=other.strategy, how=how),)


def _sent(rows: Sequence[Row]) -> str:
    return phrases.SENT.format(figures="; ".join(_sent_by(row) for row in rows))


def _sent_by(row: Row) -> str:
    figures = [mean.value for mean in (row.payload_bytes, row.tcp_bytes) if mean is not None]
    payload = byte_count(row.payload_bytes.value) if row.payload_bytes else "not stored"
    if not figures:
        return phrases.SENT_UNKNOWN.format(name=row.strategy)
    if not any(figures):
        return phrases.SENT_NOTHING.format(name=row.strategy)
    if row.tcp_bytes is None:
        return phrases.SENT_PREDICTED.format(name=row.strategy, payload=payload)
    return phrases.SENT_OVER_TCP.format(
        name=row.strategy,
        sent=byte_count(row.tcp_bytes.value),
        apart=f"{times(row.tcp_over_payload, significant=4)} " if row.tcp_over_payload else "",
        payload=f"at most {payload}" if row.payload_is_bound else payload,
    )


def _cheapest(rows: Sequence[Row], contrasts: Contrasts) -> Answer | None:
    prices = {row.strategy: price for row in rows if (price := row.price_per_hour) and price > 0.0}
    # Sorted by what rows are sorted by: equal prices leave their order as it is.
    priced = sorted(
        (row for row in rows if can_win(row) and row.strategy in prices and row.cost_per_million),
        key=lambda row: -_standing(row) / prices[row.strategy],
    )
    if len(priced) < 2:
        return None
    per_price = contrasts.per_price(prices)
    lead = lead_of(priced, per_price)
    leader, cost = lead.leader, lead.leader.cost_per_million
    # Without a cost it would be none of these.
    assert cost is not None
    phrase = {
        "clear": phrases.CHEAPEST,
        "together": phrases.CHEAPEST_LEVEL,
        "no-interval": phrases.CHEAPEST_NO_INTERVAL,
    }[lead.kind]
    text = phrase.format(
        leader=leader.strategy,
        cost=f"{plain(cost.value)} per million examples ({spread_of(cost)})",
        names=_and(lead.strategies),
        counts=_counts(lead),
        n=leader.n,
    )
    if few := rows_with_too_few(lead, per_price):
        text = f"{text} {phrases.TOO_FEW_REPEATS.format(names=_and(few))}"
    return Answer(goal="cheapest", text=text, strategies=lead.strategies, certain=lead.kind == "clear")


def _standing(row: Row) -> float:
    """The figure that rows are in falling order of: ratio to the baseline, or rate where there is none."""
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
    how = "by prediction" if layer == "payload" else "over TCP"
    amount = f"{fewest.text} a step {how} ({spread_of(fewest.mean, unit='bytes')})"
    sentences = [
        phrases.LEAST_NETWORK.format(leader=least.strategy, figure=amount),
        *_rate_beside(least, candidates[0], contrasts),
        *_level_in_bytes(fewest, least, level),
    ]
    if silent := [row.strategy for row in candidates if _sends_nothing(row, layer)]:
        sentences.append(phrases.SEND_NOTHING.format(names=_and(silent)))
    return Answer(
        goal="network",
        text=" ".join(sentences),
        strategies=(least.strategy, *(row.strategy for _, row in level)),
        certain=not level,
    )


def _rate_beside(row: Row, fastest: Row, contrasts: Contrasts) -> tuple[str, ...]:
    if row is fastest:
        return (phrases.HIGHEST_RATE_TOO,)
    ratio = contrasts.of(row.strategy, fastest.strategy)
    return () if ratio is None else (phrases.AT_RATE.format(ratio=_ratio(ratio), fastest=fastest.strategy),)


def _level_in_bytes(fewest: SentBytes, least: Row, level: Sequence[tuple[SentBytes, Row]]) -> tuple[str, ...]:
    """Strategies whose bytes are no more by what is known, with what would distinguish them."""
    if not level:
        return ()
    bounded = [row.strategy for figure, row in level if figure.is_bound]
    pair = (fewest, level[0][0])
    if bounded:
        phrase = phrases.BYTES_LEVEL_BY_BOUND
    elif any(not each.is_predicted and each.mean.n < MIN_REPEATS_INTERVAL for each in pair):
        phrase = phrases.BYTES_LEVEL_TOO_FEW
    else:
        phrase = phrases.BYTES_LEVEL
    names = _and([least.strategy, *(row.strategy for _, row in level)])
    return (phrase.format(names=names, bounded=_and(bounded)),)


def _sends_nothing(row: Row, layer: ByteLayer) -> bool:
    sent = sent_by(row, layer)
    return sent is not None and not sent.is_bound and sent.mean.high <= 0


def _outside(rows: Sequence[Row], leader: Row | None, contrasts: Contrasts) -> tuple[str, ...]:
    """Sentences on rows that may not win: those ahead of the leader by their figures, then those without any.

    Args:
        leader: None where no row may win, so that all others are named.
    """
    named: dict[str, list[str]] = {}
    for row in rows:
        reason = phrases.REASONS_NOT_TO_WIN.get(row.mark.kind)
        if row.status != "ok" or row.rate is None or reason is None:
            continue
        how = phrases.MEASURED if leader is None else _beside_leader(row, leader, contrasts)
        if how is not None:
            named.setdefault(how, []).append(f"{row.strategy} ({reason})")
    lacking = [f"{row.strategy} ({row.status})" for row in rows if row.status != "ok"]
    return (
        *(phrases.CANNOT_WIN.format(how=how, names="; ".join(names)) for how, names in named.items()),
        *((phrases.WITHOUT_RANK.format(names=", ".join(lacking)),) if lacking else ()),
    )


def _beside_leader(row: Row, leader: Row, contrasts: Contrasts) -> str | None:
    lead = contrasts.of(row.strategy, leader.strategy)
    if lead is None or lead.value <= 1.0:
        return None
    if contrasts.ahead(row.strategy, leader.strategy):
        return phrases.FASTER
    return phrases.FASTER_WITHOUT_INTERVAL if lead.interval is None else phrases.NOT_DIFFERENT


def _ratio(figure: Ratio) -> str:
    inside = f"95 % interval {limits(figure.interval)}" if figure.interval else "no interval"
    counts = f"n={figure.n}" if figure.n == figure.n_baseline else f"n={figure.n} against {figure.n_baseline}"
    return f"{times(figure.value)} ({inside}, {counts})"


def _counts(lead: Lead) -> str:
    counts = sorted({lead.leader.n, *(row.n for row in lead.level)})
    return f"n = {counts[0]}" if len(counts) == 1 else f"n = {counts[0]} to {counts[-1]}"


def _and(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}" if names else ""
