"""Trade-off of speed and bytes: what each strategy sends for its rate, and which of them pay."""

from __future__ import annotations

from collections.abc import Sequence

from reports.curves.front import undominated
from reports.recommendation.candidates import can_win
from reports.rows import Mean, Row, TradeOff, TradeOffPoint


def trade_off_of(rows: Sequence[Row]) -> TradeOff | None:
    """Rates against bytes per step; None unless two strategies that may win have both."""
    candidates = [row for row in rows if can_win(row)]
    has_tcp = all(row.tcp_bytes is not None for row in candidates)
    sent = {
        row.strategy: sent_bytes
        for row in rows
        if row.status == "ok" and row.rate is not None and row.mark.kind != "twin"
        if (sent_bytes := _sent_bytes(row, has_tcp=has_tcp)) is not None
    }
    front = undominated(
        {
            row.strategy: (row.rate.value, -sent[row.strategy].value)
            for row in candidates
            if row.rate is not None and row.strategy in sent
        }
    )
    if sum(row.strategy in sent for row in candidates) < 2:
        return None
    return TradeOff(
        layer="tcp" if has_tcp else "payload",
        points=tuple(
            TradeOffPoint(
                strategy=row.strategy,
                mark=row.mark.kind,
                can_win=can_win(row),
                rate=row.rate,
                sent_bytes=sent[row.strategy],
                on_front=row.strategy in front,
            )
            for row in rows
            if row.strategy in sent and row.rate is not None
        ),
    )


def _sent_bytes(row: Row, *, has_tcp: bool) -> Mean | None:
    return row.tcp_bytes if has_tcp else row.payload_bytes
