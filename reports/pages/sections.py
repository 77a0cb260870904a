"""Contents of a report in their order, for HTML and Markdown: head, warnings, sections below a ranking."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from harness.records.safe_text import shortened
from reports.charts.across import link_sensitivity, scaling
from reports.charts.comparison import (
    bytes_sent,
    losses_by_second,
    losses_by_step,
    memory,
    predicted_steps,
    rounds_over_time,
    step_note,
    step_times,
    traced_split,
    trade_off,
)
from reports.charts.specification import Chart
from reports.quantities import Table
from reports.rows.report import Comparison, LinkSensitivity, Note, Origin, Report, Scaling
from reports.tables.curves import (
    link_table,
    loss_table,
    memory_table,
    scaling_table,
    trade_off_table,
)
from reports.tables.figures import (
    byte_table,
    check_table,
    cost_table,
    prediction_table,
    reshard_table,
    rule_table,
    speed_table,
    step_table,
    trace_table,
)
from reports.tables.placements import pass_table, server_table
from reports.tables.predictions import prediction_texts


@dataclass(frozen=True, slots=True, order=True)
class Drop:
    """Parts of a report that Markdown drops together if there is no room for them.

    Attributes:
        order: position in the order of dropping, lowest first.
        words: name of the parts in the note on missing parts.
        singly: True to drop only as many as necessary, from the end of the report.
    """

    order: int
    words: str
    singly: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Texts, charts and tables of a comparison under one title.

    Attributes:
        key: end of the section's id in the page.
        texts: function that returns the lines above the charts.
        charts: name in the page → chart.
        tables: functions that make the tables; Markdown shows the first one.
        note: function that returns a text for the legend of the first chart.
        drop: order and name for dropping it from Markdown; None for sections that are not in Markdown.
    """

    key: str
    title: str
    texts: Callable[[Comparison], Sequence[str]] = lambda _: ()
    charts: Mapping[str, Callable[[Comparison], Chart | None]] = field(default_factory=dict)
    tables: Sequence[Callable[[Comparison], Table | None]] = ()
    note: Callable[[Comparison], str] | None = None
    drop: Drop | None = None


RANKING = Section(key="figures", title="Ranking as a table", tables=(speed_table,))
PLAN = Section(
    key="plan",
    title="Plan and passes",
    tables=(pass_table, reshard_table, server_table),
    drop=Drop(10, "plan and passes"),
)
SECTIONS = (
    Section(
        key="trade-off",
        title="Speed and traffic",
        charts={"trade-off": trade_off},
        tables=(trade_off_table,),
        drop=Drop(70, "speed and traffic"),
    ),
    Section(
        key="step-times",
        title="Step times",
        charts={"steps": step_times, "rounds": rounds_over_time},
        tables=(step_table,),
        note=step_note,
        drop=Drop(100, "step times"),
    ),
    Section(
        key="predictions",
        title="Predictions",
        texts=prediction_texts,
        charts={"predictions": predicted_steps},
        tables=(prediction_table,),
        drop=Drop(75, "predictions"),
    ),
    Section(
        key="traffic",
        title="Traffic",
        charts={"bytes": bytes_sent},
        tables=(byte_table,),
        drop=Drop(110, "traffic"),
    ),
    Section(
        key="time",
        title="Where time goes",
        charts={"traced": traced_split},
        tables=(trace_table,),
        drop=Drop(30, "where time goes"),
    ),
    Section(
        key="memory",
        title="Memory and cost",
        charts={"memory": memory},
        tables=(cost_table, memory_table),
        drop=Drop(20, "memory and cost"),
    ),
    Section(
        key="loss",
        title="Loss",
        charts={"loss-by-step": losses_by_step, "loss-by-second": losses_by_second},
        tables=(loss_table,),
    ),
    Section(key="correctness", title="Correctness", tables=(check_table,), drop=Drop(120, "correctness")),
    Section(key="rules", title="Aggregation rules", tables=(rule_table,), drop=Drop(80, "aggregation rules")),
    PLAN,
)


def head_of(origin: Origin) -> Mapping[str, str]:
    """Date, machine, versions and provider of a run, as far as they are known."""
    facts = dict(origin.facts)
    machine = (
        facts.get("processor"),
        f"{facts['cores']} cores" if "cores" in facts else None,
        f"{facts['memory']} memory" if "memory" in facts else None,
        facts.get("GPU"),
    )
    versions = [f"stratbench {facts['stratbench']}"] if "stratbench" in facts else []
    versions += [f"TensorFlow {text}" for name, text in facts.items() if name.startswith("tensorflow")]
    head = {
        "Date": facts.get("started (UTC)", "").replace("T", " ")[:16],
        "Machine": ", ".join(filter(None, machine)),
        "Versions": ", ".join(versions),
        "Provider": facts.get("provider", ""),
    }
    return {name: text for name, text in head.items() if text}


def failure_texts(comparison: Comparison) -> list[tuple[str, str]]:
    """Status, and a line with the strategies concerned, for each reason why repeats have no result."""
    named: dict[tuple[str, str], list[str]] = {}
    for row in comparison.rows:
        for problem in row.problems:
            name = row.strategy.partition(":")[0]
            reason = problem.status, shortened(problem.message.removeprefix(f"strategy {name!r}: "))
            n = len(problem.repeats)
            part = "" if n == row.n_repeats else f" ({n} of {row.n_repeats} repeats)"
            named.setdefault(reason, []).append(row.strategy + part)
    return [
        (status, f"{status}: {', '.join(names)}: {message}") for (status, message), names in named.items()
    ]


_MOST_WARNINGS = 2


def top_warnings(comparison: Comparison) -> list[Note]:
    """Warnings that stand open below the headline."""
    return list(comparison.warnings[:_MOST_WARNINGS])


def other_texts(comparison: Comparison) -> list[str]:
    """Reasons of the verdict, answers for other goals, and all other notes, once."""
    verdict = comparison.verdict
    answers = (answer.text for answer in verdict.answers if answer.goal != verdict.goal)
    above = {verdict.headline, *(note.text for note in top_warnings(comparison))}
    texts = dict.fromkeys((*answers, *verdict.details, *comparison.notes))
    return [text for text in texts if text not in above]


_NOTES = Section(key="notes", title="Reasons and notes", texts=other_texts, drop=Drop(150, "notes"))


def sections_of(report: Report, comparison: Comparison) -> Iterator[Section]:
    """Sections of a comparison in their order; scaling and links are beside a workload's first shape."""
    yield from (RANKING, _NOTES)
    place = (comparison.run, comparison.workload)
    if next(one for one in report.comparisons if (one.run, one.workload) == place) is comparison:
        of_report: tuple[Scaling | LinkSensitivity, ...] = (*report.scaling, *report.link_sensitivity)
        for number, curves in enumerate(of_report):
            if (curves.run, curves.workload) == place:
                yield _curves_section(curves, number)
    yield from SECTIONS


def _curves_section(curves: Scaling | LinkSensitivity, number: int) -> Section:
    drop = Drop(140, "scaling and links")
    if isinstance(curves, Scaling):
        return Section(
            key=f"scaling-{number}",
            title="Scaling",
            texts=lambda _: (curves.shape, *filter(None, (curves.fastest,))),
            charts={f"scaling-{number}-rates": lambda _: scaling(curves)},
            tables=(lambda _: scaling_table(curves),),
            drop=drop,
        )
    return Section(
        key=f"links-{number}",
        title="Links",
        texts=lambda _: (curves.shape, *curves.sentences),
        charts={f"links-{number}-rates": lambda _: link_sensitivity(curves)},
        tables=(lambda _: link_table(curves),),
        drop=drop,
    )
