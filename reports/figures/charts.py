"""Charts of one comparison, as specifications: ranking, bytes, step times, where a step's time goes."""

from __future__ import annotations

from collections.abc import Sequence

from reports.figures.specification import Axis, Bar, BarChart, Lane, StripChart, StripLane, StripRepeat
from reports.quantities import byte_count, interval_of, limits, plain, seconds, spread_of, times
from reports.rows import Comparison, Mean, Row, TimeSplit

_MOST_OVER_BARS = 2.5


def mark_kind(row: Row) -> str:
    """How a row is coloured: by its mark, unless its figures cannot be."""
    return row.mark.kind if row.status == "ok" else "implausible"


def ranking(comparison: Comparison) -> BarChart | None:
    """Examples per second with intervals, the baseline as a line through all; None without any figure."""
    rows = [row for row in comparison.rows if row.rate is not None]
    if not rows:
        return None
    # An implausible rate must not squeeze the others; its bar is cut at the edge.
    drawn = [row.rate for row in rows if row.rate and row.status == "ok"] or [
        row.rate for row in rows if row.rate
    ]
    tops = [rate.interval.high if rate.interval else rate.value for rate in drawn]
    # An interval of three noisy repeats can reach far: bars stay readable, it is cut at the edge.
    high = min(max(tops), _MOST_OVER_BARS * max(rate.value for rate in drawn))
    base = next((row.rate.value for row in rows if row.is_baseline and row.rate), None)
    name = "examples per second; dashed: the baseline" if base is not None else "examples per second"
    return BarChart(
        label=f"Examples per second by strategy on {comparison.workload}, with 95 % intervals",
        axis=Axis(name=name, unit="number", high=high * 1.02),
        lanes=tuple(_ranking_lane(row) for row in rows),
        reference=base,
    )


def bytes_sent(comparison: Comparison) -> BarChart | None:
    """Predicted payload, TCP and interface bytes side by side; None where nothing was sent."""
    # On an interface alone there is what workers and driver say to each other, and nothing of the strategy.
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
        lanes=tuple(_lane(row, [_byte_bar(row, name, mean) for name, mean in _layers(row)]) for row in rows),
    )


def step_times(comparison: Comparison) -> StripChart | None:
    """Every step of every repeat; None where no steps are stored."""
    rows = [row for row in comparison.rows if any(steps.seconds for steps in row.steps)]
    if not rows:
        return None
    return StripChart(
        label=f"Distribution of step times by strategy and repeat on {comparison.workload}, logarithmic axis",
        lanes=tuple(
            StripLane(key=row.strategy, name=row.strategy, mark=mark_kind(row), repeats=_strip_repeats(row))
            for row in rows
        ),
    )


def time_split(comparison: Comparison) -> BarChart | None:
    """The median step as the control's part and exposed communication; None without a control."""
    rows = [row for row in comparison.rows if row.p50_s is not None]
    if not any(row.exposed_comm_s for row in rows):
        return None
    return BarChart(
        label=f"Median step time on {comparison.workload}: computing and exposed communication",
        axis=Axis(name="median step", unit="seconds"),
        lanes=tuple(_split_lane(row, why_unsplit=_why_unsplit(row, rows)) for row in rows),
        stacked=True,
    )


def traced_split(comparison: Comparison) -> BarChart | None:
    """A traced step as computing, transfer, host, waiting and rest; None where no step was traced."""
    rows = [(row, row.time_split) for row in comparison.rows if row.time_split is not None]
    if not rows:
        return None
    return BarChart(
        label=f"Where the time of one traced step goes on {comparison.workload}, mean over workers",
        axis=Axis(name="one traced step, mean over workers", unit="seconds"),
        lanes=tuple(_traced_lane(row, split) for row, split in rows),
        stacked=True,
    )


def _lane(row: Row, bars: Sequence[Bar], note: str = "") -> Lane:
    return Lane(key=row.strategy, name=row.strategy, mark=mark_kind(row), bars=tuple(bars), note=note)


def _ranking_lane(row: Row) -> Lane:
    rate = row.rate
    value, note = standing(row)
    tip = f"{row.strategy}: {plain(rate.value if rate else None)} examples/s, {interval_of(rate)}, n={row.n}"
    return Lane(
        key=row.strategy,
        name=row.strategy,
        mark=mark_kind(row),
        bars=(Bar(kind=mark_kind(row), end=rate.value if rate else None, tip=tip),),
        interval=(rate.interval.low, rate.interval.high) if rate and rate.interval else None,
        value=value,
        note=note,
    )


def standing(row: Row) -> tuple[str, str]:
    """The ratio of a row, and what it rests on."""
    if row.status != "ok":
        return row.status, f"n={row.n}"
    if row.is_baseline:
        return "baseline", f"n={row.n}"
    interval = limits(row.ratio.interval) if row.ratio else ""
    return times(row.ratio.value if row.ratio else None), f"{interval or 'no interval'}, n={row.n}"


def _layers(row: Row) -> Sequence[tuple[str, Mean | None]]:
    return (("payload", row.payload_bytes), ("TCP", row.tcp_bytes), ("interface", row.interface_bytes))


def _byte_bar(row: Row, name: str, mean: Mean | None) -> Bar:
    if mean is None:
        return Bar(
            kind=name.lower(),
            end=None,
            tip=f"{row.strategy}: {name} not measured",
            text=f"{name}: not measured",
            short="not measured",
        )
    shown = byte_count(mean.value)
    apart = times(row.tcp_over_payload, significant=4) if row.tcp_over_payload and name == "TCP" else ""
    return Bar(
        kind=name.lower(),
        end=mean.value,
        tip=f"{row.strategy}: {name} {shown}, {spread_of(mean, unit='bytes')}",
        text=f"{name} {shown}{f' ({apart} payload)' if apart else ''}, n={mean.n}",
        short=f"{shown}{f', {apart}' if apart else ''}",
    )


def _strip_repeats(row: Row) -> tuple[StripRepeat, ...]:
    return tuple(
        StripRepeat(
            seconds=steps.seconds,
            n_warmup=steps.n_warmup,
            median=steps.p50,
            text=f"repeat {steps.repeat}: median {seconds(steps.p50)}",
            tip=f"{row.strategy}, repeat {steps.repeat}: median {seconds(steps.p50)}, "
            f"{steps.n_warmup} warm-up steps",
        )
        for steps in row.steps
        if steps.seconds
    )


def _split_lane(row: Row, *, why_unsplit: str) -> Lane:
    total = row.p50_s.value if row.p50_s else 0.0
    if row.exposed_comm_s is None:
        return _whole_lane(row, total, why_unsplit)
    exposed = row.exposed_comm_s.value
    computing = total - min(max(exposed, 0.0), total)
    bars = (
        Bar(kind="compute", end=computing, tip=f"{row.strategy}: computing {seconds(computing)}"),
        Bar(
            kind="exposed",
            start=computing,
            end=total,
            tip=f"{row.strategy}: exposed communication {seconds(exposed)}",
        ),
    )
    return _lane(row, bars, note=f"{seconds(exposed)} of {seconds(total)} exposed, n={row.n}")


def _whole_lane(row: Row, total: float, why_unsplit: str) -> Lane:
    """A step that computes alone, or of which nobody knows how much of it does."""
    if row.mark.kind in ("control", "reference"):
        bar = Bar(kind="compute", end=total, tip=f"{row.strategy}: computing {seconds(total)}, sends nothing")
        return _lane(row, [bar], note=f"{seconds(total)}, sends nothing, n={row.n}")
    tip = f"{row.strategy}: not split: {seconds(total)}, {why_unsplit}"
    return _lane(
        row, [Bar(kind="unsplit", end=total, tip=tip)], note=f"{seconds(total)}, not split, n={row.n}"
    )


def _why_unsplit(row: Row, rows: Sequence[Row]) -> str:
    """Why nobody knows how much of a row's step is exposed communication."""
    if row.transform_s is None:
        return "since TensorFlow's own strategies have no control: no pass takes communication out of them"
    if not any(other.mark.kind == "control" for other in rows):
        return "since no control was measured here"
    return "since no control was measured that computes it in the same way"


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
    return _lane(row, bars, note=f"{seconds(split.step_s.value)}, n={split.step_s.n}")
