"""All curves of one comparison."""

from __future__ import annotations

from collections.abc import Sequence

from reports.contrasts import Contrasts
from reports.curves.losses import loss_curves_of
from reports.curves.rounds import rounds_over_time_of
from reports.curves.trade_off import trade_off_of
from reports.curves.workers import balance_of, memory_of
from reports.rows import Curves, Row


def curves_of(rows: Sequence[Row], contrasts: Contrasts) -> Curves:
    """What its charts are drawn of, as far as records have it.

    Args:
        rows: in their order.
        contrasts: between them, with the records behind them.
    """
    usable = contrasts.usable
    return Curves(
        trade_off=trade_off_of(rows, contrasts),
        losses=loss_curves_of(rows, usable),
        rounds=rounds_over_time_of(rows, usable),
        memory=memory_of(rows, usable),
        balance=balance_of(rows, usable),
    )
