"""Sections of a comparison below its ranking: title, charts and table of each, for HTML and Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from reports.charts.comparison import (
    bytes_sent,
    losses_by_second,
    losses_by_step,
    memory,
    rounds_over_time,
    step_note,
    step_times,
    time_split,
    traced_split,
    trade_off,
)
from reports.charts.specification import Chart
from reports.quantities import Table
from reports.rows.report import Comparison
from reports.tables.curves import balance_table, loss_table, memory_table, round_table, trade_off_table
from reports.tables.figures import (
    byte_table,
    check_table,
    cost_table,
    reshard_table,
    rule_table,
    step_table,
    trace_table,
)
from reports.tables.placements import pass_table


@dataclass(frozen=True, slots=True, order=True)
class Drop:
    """Parts of a report that Markdown drops together if there is no room for them.

    Attributes:
        order: lowest first.
        words: the parts' name in the note on what is missing.
        singly: drop only as many as necessary, from the end of the report.
    """

    order: int
    words: str
    singly: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Charts of a comparison, and the table behind them.

    Attributes:
        charts: by the name that each has in the page.
        note: text in the charts' legend.
        about: sentence above the charts.
        if_empty: sentence above the table when no chart can be drawn; without one, HTML then has no section.
        is_folded: whether HTML folds the table below the section before it.
        drop: Markdown has sections with one only.
    """

    title: str
    table: Callable[[Comparison], Table | None] | None = None
    charts: Mapping[str, Callable[[Comparison], Chart | None]] = field(default_factory=dict)
    note: Callable[[Comparison], str] | None = None
    about: str = ""
    if_empty: str = ""
    is_folded: bool = False
    drop: Drop | None = None


SECTIONS = (
    Section(
        title="Step times",
        charts={"steps": step_times},
        note=step_note,
        if_empty="No step times are stored for these cases.",
        table=step_table,
        drop=Drop(100, "step times"),
    ),
    Section(
        title="Rounds over time",
        about="Cases take turns in each round: where all lines rise together, the machine was slow.",
        charts={"rounds": rounds_over_time},
        table=round_table,
    ),
    Section(
        title="What the median step is spent on",
        about="The numbers are those behind the step times.",
        charts={"split": time_split},
    ),
    Section(
        title="Where a step's time goes",
        charts={"traced": traced_split},
        table=trace_table,
        drop=Drop(30, "where a step's time goes"),
    ),
    Section(
        title="Over the wire, per step",
        charts={"bytes": bytes_sent},
        if_empty="No strategy here sent anything that was counted.",
        table=byte_table,
        drop=Drop(110, "bytes over the wire"),
    ),
    Section(title="How evenly tasks send, receive and hold variables", table=balance_table, is_folded=True),
    Section(
        title="Speed against bytes",
        charts={"trade-off": trade_off},
        table=trade_off_table,
        drop=Drop(70, "speed against bytes"),
    ),
    Section(
        title="Variables in parts while a loop runs",
        table=reshard_table,
        drop=Drop(50, "variables in parts"),
    ),
    Section(title="Combining gradients by a rule", table=rule_table, drop=Drop(80, "rules of aggregation")),
    Section(title="Memory", charts={"memory": memory}, table=memory_table),
    Section(
        title="Loss",
        charts={"loss-by-step": losses_by_step, "loss-by-second": losses_by_second},
        table=loss_table,
    ),
    Section(
        title="Does it compute the right thing?",
        table=check_table,
        drop=Drop(120, "equivalence checks"),
    ),
    Section(
        title="What each pass makes of the graph",
        table=pass_table,
        is_folded=True,
        drop=Drop(10, "passes over graphs"),
    ),
    Section(title="Other costs", table=cost_table, is_folded=True, drop=Drop(20, "other costs")),
)
