"""Trade-off of speed and bytes: what each strategy sends for its rate, and which of them pay."""

from __future__ import annotations

from collections.abc import Sequence

from reports.contrasts import Contrasts
from reports.recommendation.candidates import can_win, together
from reports.recommendation.sent_bytes import SentBytes, layer_of, sent_by
from reports.rows import Row, TradeOff, TradeOffPoint


def trade_off_of(rows: Sequence[Row], contrasts: Contrasts) -> TradeOff | None:
    """Rates against bytes per step; None unless two strategies that may win have both."""
    candidates = [row for row in rows if can_win(row)]
    layer = layer_of(candidates)
    known = [
        (row, row.rate, sent)
        for row in rows
        if row.status == "ok" and row.rate is not None and row.mark.kind != "twin"
        if (sent := sent_by(row, layer)) is not None
    ]
    rivals = [(row, sent) for row, _, sent in known if can_win(row)]
    if len(rivals) < 2:
        return None
    return TradeOff(
        layer=layer,
        points=tuple(
            TradeOffPoint(
                strategy=row.strategy,
                mark=row.mark.kind,
                can_win=can_win(row),
                rate=rate,
                sent_bytes=sent.mean,
                is_bound=sent.is_bound,
                on_front=can_win(row)
                and not any(_beats(rival, (row, sent), contrasts) for rival in rivals if rival[0] is not row),
            )
            for row, rate, sent in known
        ),
    )


def _beats(rival: tuple[Row, SentBytes], point: tuple[Row, SentBytes], contrasts: Contrasts) -> bool:
    """Whether a rival's figures are as good in both, and repeats show it to be better in one of them."""
    (rival_row, rival_sent), (row, sent) = rival, point
    lead = contrasts.of(rival_row.strategy, row.strategy)
    if lead is None or lead.value < 1.0 or rival_sent.mean.value > sent.at_least:
        return False
    return not together(rival_row, row, contrasts) or rival_sent.is_surely_less(sent)
