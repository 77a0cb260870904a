"""One sentence per workload: which strategy to take, by how much, and what it sends.

A strategy may win only when it is proven to compute the right thing, when every repeat was plausible, and
when the interval of its ratio to every other candidate excludes 1. Anything less is said as what it is:
strategies that rank together, a figure without an interval, or no winner.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from scipy.special import stdtrit

from harness.records.comparing.student_interval import MIN_REPEATS_INTERVAL
from reports.contrasts import SIGNIFICANCE, Contrasts
from reports.quantities import byte_count, digits, limits, plain, spread_of, times
from reports.recommendation.candidates import (
    Lead,
    SentBytes,
    can_win,
    layer_of,
    lead_of,
    sent_by,
    too_few_repeats,
)
from reports.rows import Advice, Answer, ByteLayer, Goal, MarkKind, Row
from reports.shapes import BASELINE
from reports.statistics import POWER, Ratio


def rate_phrase(figure: Ratio, of: str) -> str:
    """A ratio of rates with its interval and n."""
    inside = f"95 % interval {limits(figure.interval)}" if figure.interval else "no interval"
    counts = f"n={figure.n}" if figure.n == figure.n_baseline else f"n={figure.n} against {figure.n_baseline}"
    return f"{times(figure.value)} ({inside}, {counts}) the rate of {of}"


def bytes_phrase(row: Row, other: Row) -> str:
    """By how much a row sends fewer bytes than another, or more.

    Returns:
        Nothing unless both send something, neither figure is a bound, and repeats show the difference.
    """
    layer = layer_of((row, other))
    own, others = sent_by(row, layer), sent_by(other, layer)
    if own is None or others is None or own.is_bound or others.is_bound:
        return ""
    if min(own.mean.low, others.mean.low) <= 0:
        return ""
    if not (own.is_surely_less(others) or others.is_surely_less(own)):
        return ""
    how = " by prediction" if layer == "payload" else ""
    share = own.mean.value / others.mean.value
    if share >= 2:
        return f", but sends {times(share)} the bytes{how}"
    percent = round(100 * abs(1 - share))
    if not percent:
        return ""
    return (
        f", {'and' if share < 1 else 'but'} sends {percent} % {'fewer' if share < 1 else 'more'} bytes{how}"
    )


_REASONS: Mapping[MarkKind, str] = {
    "control": "a control: the rate if communication cost nothing",
    "not-equivalent": "NOT equivalent to the reference",
    "beyond-bound": "BEYOND what its compressors may lose",
    "undecidable": "undecidable: rounding hides whether it computes the right thing",
    "not-checked": "not checked for equivalence",
    "statistical": "of a class that is not held to equivalence",
}


def outside(rows: Sequence[Row], leader: Row | None, contrasts: Contrasts) -> tuple[str, ...]:
    """Sentences on rows that may not win: those ahead of the leader by their figures, then those without any.

    Args:
        leader: None where no row may win, so that all others are named.
    """
    others = [
        row for row in rows if row.status == "ok" and row.rate is not None and row.mark.kind in _REASONS
    ]
    named: dict[str, list[str]] = {}
    for row in others:
        how = "Measured" if leader is None else _how_it_stands(row, leader, contrasts)
        if how is not None:
            named.setdefault(how, []).append(f"{row.strategy} ({_REASONS[row.mark.kind]})")
    lacking = [f"{row.strategy} ({row.status})" for row in rows if row.status != "ok"]
    return (
        *(f"{how}, but cannot win: {'; '.join(names)}." for how, names in named.items()),
        *((f"Without a result to rank: {', '.join(lacking)}.",) if lacking else ()),
    )


def _how_it_stands(row: Row, leader: Row, contrasts: Contrasts) -> str | None:
    """What repeats show of a row whose figure is above the leader's; None where it is not."""
    lead = contrasts.of(row.strategy, leader.strategy)
    if lead is None or lead.value <= 1.0:
        return None
    if contrasts.ahead(row.strategy, leader.strategy):
        return "Faster"
    return "Faster by figures without an interval" if lead.interval is None else "As fast by these repeats"


_MOST_REPEATS = 100
"""Beyond that nobody would wait: the difference is named as too small instead."""


def tie_sentences(level: Sequence[Row], contrasts: Contrasts) -> tuple[str, ...]:
    """How far apart strategies are that rank together, why that is not enough, and what would be.

    Args:
        level: at least two, in falling order of standing.
    """
    leader, last = level[0].strategy, level[-1].strategy
    gap = contrasts.of(leader, last)
    sentences = []
    if gap is not None:
        phrase = f"{leader} runs at {rate_phrase(gap, last)}{why_together(leader, last, contrasts)}"
        sentences.append(
            f"From the highest figure to the lowest of them: {phrase}{_way_out(gap, contrasts)}."
        )
    for row in level[1:-1]:
        lead, why = contrasts.of(leader, row.strategy), why_together(leader, row.strategy, contrasts)
        if lead is not None and why:
            sentences.append(f"{leader} runs at {rate_phrase(lead, row.strategy)}{why}.")
    return tuple(sentences)


def why_together(first: str, second: str, contrasts: Contrasts) -> str:
    """Why two rank together although the interval of their ratio excludes 1; nothing where it does not."""
    lead, p = contrasts.of(first, second), contrasts.p_of(first, second)
    if lead is None or lead.interval is None or lead.interval.contains(1.0):
        return ""
    if lead.p_value is None or p is None or p <= SIGNIFICANCE:
        return ""
    corrected = f"corrected for the {contrasts.n_tests} pairs of this table p={_p(p)}"
    if lead.p_value > SIGNIFICANCE:
        alone = f"by its test these two do not differ (p={_p(lead.p_value)})"
        return f"; {alone}" if contrasts.n_tests == 1 else f"; {alone}, {corrected}"
    return f"; alone these two would differ (p={_p(lead.p_value)}), {corrected}"


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


def _way_out(gap: Ratio, contrasts: Contrasts) -> str:
    if gap.interval is None:
        return ""
    enough = enough_repeats(gap, n_tests=contrasts.n_tests)
    if enough is None:
        return f"; so small a difference would take more than {_MOST_REPEATS} repeats, by a rough estimate"
    return f"; about {enough} repeats would likely tell them apart, by a rough estimate"


def _p(value: float) -> str:
    return digits(value, significant=2)


def further_answers(rows: Sequence[Row], contrasts: Contrasts) -> tuple[Answer, ...]:
    """An answer for each goal other than speed whose figures two candidates at least have.

    Args:
        rows: of one workload and shape, in falling order of standing.
    """
    answers = (_cheapest(rows, contrasts), _least_network(rows, contrasts))
    return tuple(answer for answer in answers if answer is not None)


def why_no_answer(goal: Goal) -> str:
    """What is missing where a goal has no answer, and the way out."""
    missing: Mapping[Goal, str] = {
        "fastest": "fewer than two strategies were measured and shown to compute the right thing",
        "cheapest": "fewer than two strategies that may win have a price; give cluster.price_per_hour",
        "network": "fewer than two strategies that may win have sent anything that is known",
    }
    return f"compare.goal is {goal}, but {missing[goal]}; named is the fastest."


def _cheapest(rows: Sequence[Row], contrasts: Contrasts) -> Answer | None:
    """Who takes most examples for its price, by the tests that say who is fastest."""
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
    at = f"{plain(cost.value)} per million examples ({spread_of(cost)})"
    few = too_few_repeats(lead, per_price)
    text = {
        "clear": f"Cheapest: {leader.strategy}, at {at}.",
        "together": f"Cheapest: {' or '.join(lead.strategies)}, which these repeats cannot tell apart{few}; "
        f"{leader.strategy} costs {at}.",
        "no-interval": f"Cheapest by its figure: {leader.strategy}, at {at}, but n={leader.n} gives "
        "no interval.",
    }[lead.kind]
    return Answer(goal="cheapest", text=text, strategies=lead.strategies, certain=lead.kind == "clear")


def _standing(row: Row) -> float:
    """What rows are in falling order of: the ratio to the baseline, or the rate where there is none."""
    if row.ratio is not None:
        return row.ratio.value
    return 1.0 if row.is_baseline or row.rate is None else row.rate.value


def _least_network(rows: Sequence[Row], contrasts: Contrasts) -> Answer | None:
    """Which strategy sends least of those that send anything; others, such as one device alone, are named."""
    candidates = [row for row in rows if can_win(row)]
    layer = layer_of(candidates)
    sent = [
        (each, row) for row in candidates if (each := sent_by(row, layer)) is not None and each.mean.value > 0
    ]
    if len(sent) < 2:
        return None
    fewest, least = min(sent, key=lambda item: item[0].mean.value)
    level = [(each, row) for each, row in sent if row is not least and not fewest.is_surely_less(each)]
    how = "by prediction" if layer == "payload" else "over TCP"
    figure = f"{fewest.text} a step {how} ({spread_of(fewest.mean, unit='bytes')})"
    silent = [row.strategy for row in candidates if _sends_nothing(row, layer)]
    among = " of those that send anything" if silent else ""
    parts = [f"Least network{among}: {least.strategy}, {figure}"]
    parts[0] += _cost_in_speed(least, candidates[0], contrasts)
    if level:
        names = " and ".join(row.strategy for _, row in level)
        parts.append(f"{names} cannot be told from it in bytes{_why_level(fewest, level)}")
    if silent:
        parts.append(f"{' and '.join(silent)} {'sends' if len(silent) == 1 else 'send'} nothing")
    return Answer(
        goal="network",
        text=f"{'; '.join(parts)}.",
        strategies=(least.strategy, *(row.strategy for _, row in level)),
        certain=not level,
    )


def _sends_nothing(row: Row, layer: ByteLayer) -> bool:
    """Whether it is known that a row sends nothing."""
    sent = sent_by(row, layer)
    return sent is not None and not sent.is_bound and sent.mean.high <= 0


def _why_level(fewest: SentBytes, level: Sequence[tuple[SentBytes, Row]]) -> str:
    """What would tell them apart, where it is more than that their ranges overlap."""
    bounds = [row.strategy for each, row in level if each.is_bound]
    if bounds:
        return f", since of {' and '.join(bounds)} it is only known what is sent at most"
    if any(not each.is_predicted and each.mean.n < MIN_REPEATS_INTERVAL for each in (fewest, level[0][0])):
        return f" by fewer than {MIN_REPEATS_INTERVAL} repeats"
    return ""


def _cost_in_speed(row: Row, leader: Row, contrasts: Contrasts) -> str:
    """How much slower than the highest rate a row is."""
    if row is leader:
        return ", which has the highest rate too"
    lead = contrasts.of(row.strategy, leader.strategy)
    return "" if lead is None else f", at {rate_phrase(lead, leader.strategy)}, the highest"


_ENOUGH = f"Run at least {MIN_REPEATS_INTERVAL} repeats for an interval."
_EMULATED = "Of the processors that emulate TPU cores, and of no TPU: there the order may be another one."


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
        is_emulated: their devices stood for others, of which rates tell nothing.
        has_faults: some of their workers do not do what they should.
    """
    if has_faults:
        return _under_faults(rows)
    advice = _fastest(rows, contrasts)
    advice = replace(advice, answers=_answers(advice, rows, contrasts))
    advice = replace(advice, details=(*advice.details, *_further(advice)))
    if goal != "fastest":
        advice = _towards(advice, goal)
    first = (_EMULATED,) if is_emulated else ()
    return replace(advice, details=(*first, *advice.details))


def _answers(fastest: Advice, rows: Sequence[Row], contrasts: Contrasts) -> tuple[Answer, ...]:
    """An answer for each goal that has figures; none where there is nobody to be set against."""
    if fastest.kind == "none":
        return ()
    answer = Answer(
        goal="fastest",
        text=fastest.headline,
        strategies=fastest.leaders,
        certain=fastest.kind == "clear",
    )
    return (answer, *further_answers(rows, contrasts))


def _further(advice: Advice) -> tuple[str, ...]:
    """Answers for other goals than speed; what sends least is told where it is another one."""
    return tuple(
        answer.text
        for answer in advice.answers
        if answer.goal == "cheapest"
        or (answer.goal == "network" and not set(answer.strategies) & set(advice.leaders))
    )


def _towards(advice: Advice, goal: Goal) -> Advice:
    """The advice with the answer for another goal as its headline, and what it said before below that."""
    answer = next((each for each in advice.answers if each.goal == goal), None)
    if answer is None:
        return replace(advice, details=(why_no_answer(goal), *advice.details))
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


def _fastest(rows: Sequence[Row], contrasts: Contrasts) -> Advice:
    candidates = [row for row in rows if can_win(row)]
    if not candidates:
        return Advice(
            kind="none",
            headline="No winner: no strategy was both measured and shown to compute the right thing.",
            details=outside(rows, None, contrasts),
            leaders=(),
        )
    if len(candidates) == 1:
        return _only(rows, candidates[0], contrasts)
    lead = lead_of(candidates, contrasts)
    match lead.kind:
        case "no-interval":
            return _without_interval(rows, candidates, contrasts)
        case "together":
            return _level(rows, lead, contrasts)
        case "clear":
            return _clear(rows, candidates, contrasts)


def _only(rows: Sequence[Row], leader: Row, contrasts: Contrasts) -> Advice:
    return Advice(
        kind="none",
        headline=f"No comparison: only {leader.strategy} was measured and shown to compute the right thing.",
        details=(*_wire([leader]), *outside(rows, leader, contrasts)),
        leaders=(leader.strategy,),
    )


def _without_interval(rows: Sequence[Row], candidates: Sequence[Row], contrasts: Contrasts) -> Advice:
    leader = candidates[0]
    return Advice(
        kind="no-interval",
        headline=(
            f"No winner declared: {leader.strategy} has the highest figure, "
            f"but n={leader.n} gives no interval."
        ),
        details=(
            *_against_baseline(rows, leader),
            _ENOUGH,
            *_wire([candidates[1] if leader.is_baseline else leader]),
            *outside(rows, leader, contrasts),
        ),
        leaders=(leader.strategy,),
    )


def _level(rows: Sequence[Row], lead: Lead, contrasts: Contrasts) -> Advice:
    level, names = (lead.leader, *lead.level), lead.strategies
    joined = f"{', '.join(names[:-1])} and {names[-1]}"
    ties = tie_sentences(level, contrasts)
    few = too_few_repeats(lead, contrasts)
    return Advice(
        kind="together",
        headline=f"{joined} rank together: these repeats cannot tell them apart{few}.",
        details=(
            *ties,
            *((_ENOUGH,) if few else ()),
            *(
                text
                for text in _against_baseline(rows, level[0])
                if not any(text[:-1] in tie for tie in ties)
            ),
            *_wire(level),
            *outside(rows, level[0], contrasts),
        ),
        leaders=names,
    )


def _clear(rows: Sequence[Row], candidates: Sequence[Row], contrasts: Contrasts) -> Advice:
    leader, second = candidates[0], candidates[1]
    lead = contrasts.of(leader.strategy, second.strategy)
    if leader.is_baseline and leader.strategy == BASELINE:
        headline = f"{leader.strategy}, the baseline, is fastest: nothing else pays off here."
        by = "" if second.ratio is None else f", at {rate_phrase(second.ratio, leader.strategy)}"
        details = [f"Best of the others is {second.strategy}{by}."]
    else:
        name = f"{leader.strategy}, the baseline," if leader.is_baseline else leader.strategy
        headline = f"{name} is fastest{_ahead_of(leader, second, lead)}."
        details = [] if second.is_baseline else [*_against_baseline(rows, leader)]
    details.extend(_wire([second if leader.is_baseline else leader]))
    return Advice(
        kind="clear",
        headline=headline,
        details=(*details, *outside(rows, leader, contrasts)),
        leaders=(leader.strategy,),
    )


def _ahead_of(leader: Row, second: Row, lead: Ratio | None) -> str:
    """By how much the next candidate is slower, and what the leader sends beside it."""
    if lead is None:
        return ""
    place = "the baseline and next" if second.is_baseline else "the next"
    return f": {rate_phrase(lead, second.strategy)}, {place}{bytes_phrase(leader, second)}"


def _against_baseline(rows: Sequence[Row], row: Row) -> tuple[str, ...]:
    """How a row stands against the baseline; nothing for the baseline itself."""
    base = next((other.strategy for other in rows if other.is_baseline), None)
    if row.ratio is None or base is None:
        return ()
    return (f"{row.strategy} runs at {rate_phrase(row.ratio, base)}.",)


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
