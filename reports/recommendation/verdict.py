"""One sentence per workload: which strategy to take, by how much, and what it sends.

A strategy may win only when it is proven to compute the right thing, when every repeat was plausible, and
when the interval of its ratio to every other candidate excludes 1. Anything less is said as what it is:
strategies that rank together, a figure without an interval, or no winner.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.records.comparing.student_interval import MIN_REPEATS_INTERVAL
from reports.contrasts import Contrasts
from reports.quantities import byte_count, times
from reports.recommendation.answers import further_answers, why_no_answer
from reports.recommendation.candidates import Lead, can_win, lead_of, too_few_repeats
from reports.recommendation.cannot_win import outside
from reports.recommendation.phrases import bytes_phrase, rate_phrase
from reports.recommendation.ties import tie_sentences
from reports.rows import Advice, Answer, Goal, Row
from reports.shapes import BASELINE
from reports.statistics import Ratio

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
