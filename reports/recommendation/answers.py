"""Short answers: the strategy that serves each goal best, each with how certain that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reports.contrasts import Contrasts
from reports.quantities import byte_count, plain, spread_of
from reports.recommendation.candidates import can_win, together
from reports.recommendation.phrases import rate_phrase
from reports.rows import Answer, Goal, Mean, Row


def answers_of(rows: Sequence[Row], contrasts: Contrasts) -> tuple[Answer, ...]:
    """An answer for each goal whose figures two candidates at least have.

    Args:
        rows: of one workload and shape, in falling order of standing.
    """
    candidates = [row for row in rows if can_win(row)]
    if len(candidates) < 2:
        return ()
    answers = (
        _fastest(candidates, contrasts),
        _cheapest(candidates, contrasts),
        _least_network(candidates, contrasts),
    )
    return tuple(answer for answer in answers if answer is not None)


def why_no_answer(goal: Goal) -> str:
    """What is missing where a goal has no answer, and the way out."""
    missing: Mapping[Goal, str] = {
        "fastest": "fewer than two strategies were measured and shown to compute the right thing",
        "cheapest": "fewer than two strategies that may win have a price; give cluster.price_per_hour",
        "network": "fewer than two strategies that may win have sent anything that is known",
    }
    return f"compare.goal is {goal}, but {missing[goal]}; named is the fastest."


def _fastest(candidates: Sequence[Row], contrasts: Contrasts) -> Answer:
    leader, second = candidates[0], candidates[1]
    name = leader.strategy
    if leader.rate is None or leader.rate.interval is None:
        text = f"Fastest by its figure: {name}, but n={leader.n} gives no interval."
        return Answer(goal="fastest", text=text, strategies=(name,), certain=False)
    level = [row.strategy for row in candidates[1:] if together(leader, row, contrasts)]
    if level:
        names = (name, *level)
        text = f"Fastest: {' or '.join(names)}, which these repeats cannot tell apart."
        return Answer(goal="fastest", text=text, strategies=names, certain=False)
    lead = contrasts.of(name, second.strategy)
    by = "" if lead is None else f", at {rate_phrase(lead, second.strategy)}, the next"
    return Answer(goal="fastest", text=f"Fastest: {name}{by}.", strategies=(name,), certain=True)


def _cheapest(candidates: Sequence[Row], contrasts: Contrasts) -> Answer | None:
    """What a million examples cost at least, where prices are known."""
    priced = [(row.cost_per_million.value, row) for row in candidates if row.cost_per_million]
    if len(priced) < 2:
        return None
    cost, least = min(priced, key=lambda item: item[0])
    level = [row.strategy for _, row in priced if row is not least and not _is_cheaper(least, row, contrasts)]
    names = (least.strategy, *level)
    price = f"{plain(cost)} per million examples"
    text = f"Cheapest: {least.strategy}, at {price}."
    if level:
        joined = " or ".join(names)
        text = f"Cheapest: {joined}, which these repeats cannot tell apart; {least.strategy} costs {price}."
    return Answer(goal="cheapest", text=text, strategies=names, certain=not level)


def _is_cheaper(row: Row, other: Row, contrasts: Contrasts) -> bool:
    """Whether the repeats show that a row takes examples for less than another."""
    lead = contrasts.of(row.strategy, other.strategy)
    if lead is None or lead.interval is None or not row.price_per_hour or not other.price_per_hour:
        return False
    return lead.interval.low * other.price_per_hour / row.price_per_hour > 1.0


def _least_network(candidates: Sequence[Row], contrasts: Contrasts) -> Answer | None:
    """Which strategy sends least of those that send anything, as one device alone does not."""
    is_measured = all(row.tcp_bytes is not None for row in candidates)
    sent: list[tuple[Mean, Row]] = [
        (mean, row)
        for row in candidates
        if (mean := row.tcp_bytes if is_measured else row.payload_bytes) is not None and mean.value > 0
    ]
    if len(sent) < 2:
        return None
    fewest, least = min(sent, key=lambda item: item[0].value)
    level = [row.strategy for mean, row in sent if row is not least and mean.low <= fewest.high]
    layer = "over TCP" if is_measured else "by prediction"
    most = " at most" if least.payload_is_bound and not is_measured else ""
    figure = f"{byte_count(fewest.value)}{most} a step {layer} ({spread_of(fewest, unit='bytes')})"
    names = (least.strategy, *level)
    text = f"Least network: {least.strategy}, {figure}{_cost_in_speed(least, candidates[0], contrasts)}."
    if level:
        text = f"{text[:-1]}; {' and '.join(level)} cannot be told from it in bytes."
    # One repeat has no range that could show it.
    is_shown = not level and all(mean.n > 1 for mean, _ in sent)
    return Answer(goal="network", text=text, strategies=names, certain=is_shown)


def _cost_in_speed(row: Row, leader: Row, contrasts: Contrasts) -> str:
    """How much slower than the highest rate a row is."""
    if row is leader:
        return ", which has the highest rate too"
    lead = contrasts.of(row.strategy, leader.strategy)
    return "" if lead is None else f", at {rate_phrase(lead, leader.strategy)}, the highest"
