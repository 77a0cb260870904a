"""Charts of one comparison: rates, bytes, step times and what they are spent on, memory, losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from reports.charts.specification import (
    Axis,
    Bar,
    BarChart,
    Event,
    Lane,
    Line,
    LineChart,
    Point,
    PointChart,
    StripChart,
    StripLane,
    StripRepeat,
)
from reports.curves.residuals import predicted_rows
from reports.load import MAX_SHOWN_REPEATS
from reports.marks import why_unranked
from reports.quantities import (
    MISSING,
    byte_count,
    evidence,
    interval_of,
    limits,
    percent,
    plain,
    seconds,
    spread_of,
    times,
)
from reports.rows.parts import StepSeries
from reports.rows.report import Comparison, LossCurve
from reports.rows.row import Row, TimeSplit
from reports.statistics import Estimate, Mean

_MOST_OVER_BARS = 2.5
_LOG_FROM = 20.0
"""Ratio of the largest loss to the smallest from which on the axis is logarithmic."""


def ranking(comparison: Comparison) -> BarChart | None:
    """Examples per second with intervals, and a line at the baseline; None without any rate."""
    rows = [row for row in comparison.rows if row.rate is not None]
    if not rows:
        return None
    # The bar of an implausible rate is cut at the edge.
    rates = [row.rate for row in rows if row.rate and row.status == "ok"] or [
        row.rate for row in rows if row.rate
    ]
    tops = [rate.interval.high if rate.interval else rate.value for rate in rates]
    # A wide interval is cut at the edge, too.
    high = min(max(tops), _MOST_OVER_BARS * max(rate.value for rate in rates))
    base = next((row.rate.value for row in rows if row.is_baseline and row.rate), None)
    name = f"examples per second, with 95 % CI{'' if base is None else '; dashed: the baseline'}"
    return BarChart(
        label=f"Examples per second by strategy on {comparison.workload}, with 95 % CI",
        axis=Axis(name=name, unit="number", high=high * 1.02),
        lanes=tuple(_ranking_lane(row) for row in rows),
        reference=base,
    )


def _ranking_lane(row: Row) -> Lane:
    rate = row.rate
    value, note = standing(row)
    return Lane(
        key=row.strategy,
        name=row.strategy,
        mark=_mark(row),
        bars=(
            Bar(kind=_mark(row), end=rate.value if rate else None, tip=f"{row.strategy}: {rate_text(rate)}"),
        ),
        interval=(rate.interval.low, rate.interval.high) if rate and rate.interval else None,
        value=value,
        note=note,
        remark=f"not ranked: {why}" if row.status == "ok" and (why := why_unranked(row)) else "",
    )


def standing(row: Row) -> tuple[str, str]:
    """Ratio of a row to the baseline, and its interval and n."""
    if row.status == "ok" and row.ratio and not row.is_baseline:
        return times(row.ratio.value), evidence(row.ratio)
    value = row.status if row.status != "ok" else "baseline" if row.is_baseline else MISSING
    return value, f"n = {row.n}"


def rate_text(rate: Estimate | None) -> str:
    """A rate with its interval and n."""
    return (
        f"{plain(rate.value if rate else None)} examples/s, {interval_of(rate)}, n = {rate.n if rate else 0}"
    )


def trade_off(comparison: Comparison) -> PointChart | None:
    """Chart of rate against bytes per step; None if fewer than two candidates have both."""
    figures = comparison.curves.trade_off
    if figures is None:
        return None
    layer = "TCP" if figures.layer == "tcp" else "predicted payload"
    return PointChart(
        label=f"Examples per second against bytes per step ({layer}) on {comparison.workload}, by strategy",
        x=Axis(name=f"bytes per step ({layer}), less is better", unit="bytes", low=0.0),
        y=Axis(name="examples per second", unit="number", low=0.0),
        points=tuple(
            Point(
                key=point.strategy,
                name=f"{point.strategy}, at most" if point.is_bound else point.strategy,
                x=point.sent_bytes.value,
                y=point.rate.value,
                kind="front" if point.on_front else "behind",
                tip=f"{point.strategy}: {rate_text(point.rate)}, {'at most ' if point.is_bound else ''}"
                f"{byte_count(point.sent_bytes.value)} a step "
                f"({spread_of(point.sent_bytes, unit='bytes')})",
            )
            for point in figures.points
        ),
        front="Pareto front",
        behind="dominated, or cannot win",
        joined=True,
    )


def bytes_sent(comparison: Comparison) -> BarChart | None:
    """Predicted payload, TCP and interface bytes; None if nothing was sent."""
    # Bytes of the interface alone are control messages.
    rows = [
        row
        for row in comparison.rows
        if any(mean and mean.value > 0 for mean in (row.payload_bytes, row.tcp_bytes))
    ]
    if not rows:
        return None
    return BarChart(
        label=f"Bytes sent per step by strategy on {comparison.workload}: predicted payload, TCP, interface",
        axis=Axis(name="bytes per step, all workers together", unit="bytes"),
        lanes=tuple(
            _lane(
                row,
                [
                    _byte_bar(row, "payload", row.payload_bytes),
                    _byte_bar(row, "TCP", row.tcp_bytes),
                    _byte_bar(row, "interface", row.interface_bytes),
                ],
            )
            for row in rows
        ),
    )


def _byte_bar(row: Row, layer: str, mean: Mean | None) -> Bar:
    kind = layer.lower()
    if mean is None:
        return Bar(
            kind=kind,
            end=None,
            tip=f"{row.strategy}: {layer} not measured",
            text=f"{layer}: not measured",
            short="not measured",
        )
    size = byte_count(mean.value)
    apart = times(row.tcp_over_payload, significant=4) if row.tcp_over_payload and layer == "TCP" else ""
    return Bar(
        kind=kind,
        end=mean.value,
        tip=f"{row.strategy}: {layer} {size}, {spread_of(mean, unit='bytes')}",
        text=f"{layer} {size}{f' ({apart} payload)' if apart else ''}, n = {mean.n}",
        short=f"{size}{f', {apart}' if apart else ''}",
    )


def step_times(comparison: Comparison) -> StripChart | None:
    """Chart of every step of every repeat; None if no steps are stored."""
    rows = [row for row in comparison.rows if any(steps.seconds for steps in row.steps)]
    if not rows:
        return None
    return StripChart(
        label=f"Step times by strategy and repeat on {comparison.workload}, logarithmic axis",
        lanes=tuple(
            StripLane(
                key=row.strategy,
                name=row.strategy,
                mark=_mark(row),
                repeats=tuple(
                    StripRepeat(
                        seconds=steps.seconds,
                        n_warmup=steps.n_warmup,
                        median=steps.p50 if steps.unit == "step" else None,
                        text=f"repeat {steps.repeat}: {_median(steps)}",
                        tip=f"{row.strategy}, repeat {steps.repeat}: {_median(steps)}, "
                        f"{steps.n_warmup} warm-up steps",
                    )
                    for steps in row.steps
                    if steps.seconds
                ),
            )
            for row in rows
        ),
    )


def _median(steps: StepSeries) -> str:
    unit = "" if steps.unit == "step" else f" (mean step of each {steps.unit})"
    return f"median {seconds(steps.p50)}{unit}"


def step_note(comparison: Comparison) -> str:
    """Legend of step times: how they are drawn, and how many are not."""
    n_thinned = sum(steps.thinned_from is not None for row in comparison.rows for steps in row.steps)
    n_undrawn = sum(row.n - len(row.steps) for row in comparison.rows if row.n > MAX_SHOWN_REPEATS)
    notes = ["one line per repeat, logarithmic axis"]
    if n_thinned:
        notes.append(f"{n_thinned} long repeats are thinned evenly for display")
    if n_undrawn:
        notes.append(f"{n_undrawn} repeats are not drawn, evenly spread over the run")
    return "; ".join(notes)


def rounds_over_time(comparison: Comparison) -> LineChart | None:
    """Each window's steps relative to the strategy's own median; None without rounds."""
    rounds = comparison.curves.rounds
    if rounds is None or len(rounds.repeats) < 2:
        return None
    colors = _colors(comparison)
    names = [
        f"repeat {repeat}, round {number}"
        for repeat, number in zip(rounds.repeats, rounds.numbers, strict=True)
    ]
    begins = [0, *(i for i in range(1, len(names)) if rounds.repeats[i] != rounds.repeats[i - 1])]
    return LineChart(
        label=f"Step time of each round relative to the strategy's own median on {comparison.workload}",
        x=Axis(name="rounds in the order of time", unit="number", low=0.0, high=len(names) - 1.0),
        y=Axis(name="step time ÷ own median", unit="times"),
        lines=tuple(
            Line(
                key=line.strategy,
                name=line.strategy,
                color=colors[line.strategy],
                points=tuple((float(i), value) for i, value in enumerate(line.relative)),
                tips=tuple(
                    f"{line.strategy}, {name}: {times(value)} its median step"
                    for name, value in zip(names, line.relative, strict=True)
                ),
            )
            for line in rounds.lines
        ),
        events=tuple(Event(x=float(i), text=f"repeat {rounds.repeats[i]}") for i in begins),
        low_height=True,
    )


def predicted_steps(comparison: Comparison) -> BarChart | None:
    """Predicted above measured duration of a step; None if no case was predicted."""
    rows = predicted_rows(comparison)
    if not rows:
        return None
    return BarChart(
        label=f"Predicted and measured duration of a step by strategy on {comparison.workload}",
        axis=Axis(name="duration of a step", unit="seconds"),
        lanes=tuple(_lane(row, list(_step_bars(row))) for row in rows),
    )


def _step_bars(row: Row) -> Iterator[Bar]:
    predicted, measured = row.predicted_step_s, row.p50_s
    assert predicted is not None
    assert measured is not None
    assert row.prediction_error is not None
    evidence = (limits(predicted.interval, unit="seconds"), interval_of(measured, unit="seconds"))
    error = f", error {percent(row.prediction_error, signed=True)}"
    for kind, value, tip, after in zip(
        ("predicted", "measured"), (predicted.value, measured.value), evidence, (error, ""), strict=True
    ):
        text = f"{kind} {seconds(value)}"
        yield Bar(
            kind=kind,
            end=value,
            tip=f"{row.strategy}: {text}, {tip}",
            text=f"{text}{after}",
            short=seconds(value),
        )


def traced_split(comparison: Comparison) -> BarChart | None:
    """Chart of a traced step by activity; None if no step was traced."""
    rows = [(row, row.time_split) for row in comparison.rows if row.time_split is not None]
    if not rows:
        return None
    return BarChart(
        label=f"Where the time of one traced step goes on {comparison.workload}, mean over workers",
        axis=Axis(name="one traced step, mean over workers", unit="seconds"),
        lanes=tuple(_traced_lane(row, split) for row, split in rows),
        stacked=True,
    )


def _traced_lane(row: Row, split: TimeSplit) -> Lane:
    parts = (
        ("compute", "computing", split.compute_s),
        ("transfer", "transfer", split.transfer_s),
        ("host", "host", split.host_s),
        ("wait", "waiting for workers", split.wait_s),
        ("rest", "rest", split.rest_s),
    )
    bars, start = [], 0.0
    for kind, name, mean in parts:
        if mean is None:
            continue
        tip = f"{row.strategy}: {name} {seconds(mean.value)}, {spread_of(mean, unit='seconds')}"
        bars.append(Bar(kind=kind, start=start, end=start + mean.value, tip=tip))
        start += mean.value
    return _lane(row, bars, note=f"{seconds(split.step_s.value)}, n = {split.step_s.n}")


def memory(comparison: Comparison) -> BarChart | None:
    """Chart of the largest worker's peak memory and variables; None if not recorded."""
    rows = {row.strategy: row for row in comparison.rows}
    lanes = []
    for of_workers in comparison.curves.memory:
        bars = []
        for kind, name, by_worker in (
            ("resident", "peak", of_workers.peak_bytes),
            ("variables", "variables", of_workers.variable_bytes or ()),
        ):
            known = [n_bytes for n_bytes in by_worker if n_bytes is not None]
            if known:
                span = f", workers from {byte_count(min(known))} to {byte_count(max(known))}"
                text = f"{name} {byte_count(max(known))}"
                tip = f"{of_workers.strategy}: {text}{span if len(known) > 1 else ''}, n = {of_workers.n}"
                bars.append(
                    Bar(kind=kind, end=float(max(known)), tip=tip, text=text, short=byte_count(max(known)))
                )
        lanes.append(_lane(rows[of_workers.strategy], bars))
    if not lanes:
        return None
    return BarChart(
        label=f"Memory of the largest worker by strategy on {comparison.workload}: peak, and variables in it",
        axis=Axis(name="bytes of the largest worker", unit="bytes"),
        lanes=tuple(lanes),
    )


def losses_by_step(comparison: Comparison) -> LineChart | None:
    """Chart of the loss by step; None if no losses are stored."""
    x = Axis(name="step, warm-up included", unit="number", what="step", low=0.0)
    return _losses(comparison, "step", x, lambda curve: map(float, curve.at_steps))


def losses_by_second(comparison: Comparison) -> LineChart | None:
    """Chart of the loss by seconds of training; None if no losses are stored."""
    x = Axis(name="time at the median step", unit="seconds", low=0.0)
    return _losses(comparison, "second", x, lambda curve: iter(curve.at_s))


def _losses(
    comparison: Comparison, by: str, x: Axis, places: Callable[[LossCurve], Iterator[float]]
) -> LineChart | None:
    curves = comparison.curves.losses
    known = [loss for curve in curves for loss in curve.mean if loss is not None]
    if not known:
        return None
    colors = _colors(comparison)
    is_log = min(known) > 0 and max(known) / min(known) > _LOG_FROM
    return LineChart(
        label=f"Loss by {by} of training on {comparison.workload}, mean over repeats",
        x=x,
        y=Axis(name="loss", unit="number", what="loss", log=is_log),
        lines=tuple(
            Line(
                key=curve.strategy,
                name=curve.strategy,
                color=colors[curve.strategy],
                points=tuple(zip(places(curve), curve.mean, strict=True)),
            )
            for curve in curves
        ),
    )


def _lane(row: Row, bars: Sequence[Bar], note: str = "") -> Lane:
    return Lane(key=row.strategy, name=row.strategy, mark=_mark(row), bars=tuple(bars), note=note)


def _mark(row: Row) -> str:
    return row.mark.kind if row.status == "ok" else "implausible"


def _colors(comparison: Comparison) -> dict[str, int]:
    return {row.strategy: number for number, row in enumerate(comparison.rows)}
