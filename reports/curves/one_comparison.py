"""All curves of one comparison."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.records.record import Record
from reports.curves.losses import loss_curves_of
from reports.curves.rounds import rounds_over_time_of
from reports.curves.trade_off import trade_off_of
from reports.curves.workers import balance_of, memory_of
from reports.rows import Curves, Row


def curves_of(rows: Sequence[Row], usable: Mapping[str, Sequence[Record]]) -> Curves:
    """What its charts are drawn of, as far as records have it.

    Args:
        rows: in their order.
        usable: strategy → the records of it that have a rate.
    """
    return Curves(
        trade_off=trade_off_of(rows),
        losses=loss_curves_of(rows, usable),
        rounds=rounds_over_time_of(rows, usable),
        memory=memory_of(rows, usable),
        balance=balance_of(rows, usable),
    )
