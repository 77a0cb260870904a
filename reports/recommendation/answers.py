"""Short answers for goals other than speed: the strategy that serves each best, and how certain that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.records.comparing.student_interval import MIN_REPEATS_INTERVAL
from reports.contrasts import Contrasts
from reports.quantities import plain, spread_of
from reports.recommendation.candidates import can_win, lead_of, too_few_repeats
from reports.recommendation.phrases import rate_phrase
from reports.recommendation.sent_bytes import SentBytes, layer_of, sent_by
from reports.rows import Answer, ByteLayer, Goal, Row


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
