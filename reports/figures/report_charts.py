"""The charts of a report, each by its id: what the page shows and what files are made of."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from harness.records.facts.circumstances import AS_WRITTEN
from reports.figures import charts, curves
from reports.figures.fault_front import fault_front
from reports.figures.specification import Chart
from reports.rows import Comparison, FaultMatrix, LinkSensitivity, Report, Scaling

_OF_COMPARISON: dict[str, Callable[[Comparison], Chart | None]] = {
    "ranking": charts.ranking,
    "trade-off": curves.trade_off,
    "bytes": charts.bytes_sent,
    "steps": charts.step_times,
    "rounds": curves.rounds_over_time,
    "split": charts.time_split,
    "traced": charts.traced_split,
    "memory": curves.memory,
    "loss-by-step": curves.losses_by_step,
    "loss-by-second": curves.losses_by_second,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportChart:
    """A chart as the page has it: `name` says what it shows of its `section`, whose id begins the chart's.

    `where` is the section's workload and shape in words, `distinction` what tells sections of one workload
    apart in short, such as `4x1-100mbit`.
    """

    section: str
    name: str
    workload: str
    distinction: str
    where: str
    chart: Chart

    @property
    def id(self) -> str:
        """The id of the page's element."""
        return f"{self.section}-{self.name}"


def report_charts(report: Report) -> tuple[ReportChart, ...]:
    """All charts for which there are figures, in the order of the page."""
    return tuple(_charts(report))


def _charts(report: Report) -> Iterator[ReportChart]:
    def charted(
        of: FaultMatrix | Scaling | LinkSensitivity | Comparison,
        section: str,
        name: str,
        chart: Chart | None,
    ) -> Iterator[ReportChart]:
        if chart is not None:
            run = report.run_in_words(of.run)
            yield ReportChart(
                section=section,
                name=name,
                workload=of.workload,
                distinction=_distinction(of) if isinstance(of, Comparison) else "",
                where=f"{of.workload} · {of.shape}{f' · run {run}' if run else ''}",
                chart=chart,
            )

    for i, matrix in enumerate(report.fault_matrices):
        yield from charted(matrix, f"faults-{i}", "front", fault_front(matrix))
    for i, scaling in enumerate(report.scaling):
        yield from charted(scaling, f"scaling-{i}", "rates", curves.scaling(scaling))
    for i, links in enumerate(report.link_sensitivity):
        yield from charted(links, f"links-{i}", "rates", curves.link_sensitivity(links))
    for i, comparison in enumerate(report.comparisons):
        for name, draw in _OF_COMPARISON.items():
            yield from charted(comparison, f"comparison-{i}", name, draw(comparison))


def _distinction(comparison: Comparison) -> str:
    parts = [f"{comparison.workers}x{comparison.replicas}"]
    if comparison.link_requested_mbit:
        parts.append(f"{comparison.link_requested_mbit:g}mbit")
    if comparison.precision != AS_WRITTEN:
        parts.append(comparison.precision)
    if comparison.xla:
        parts.append("xla")
    if comparison.tf32 is False:
        parts.append("tf32-off")
    if comparison.scenario:
        parts.append(comparison.scenario)
    return "-".join(parts)
