"""The charts of a report as SVG text, drawn here so that the page needs no script."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from reports.figures.frame import Frame, row_label
from reports.figures.svg import Scale, axis, bar, chart, dots, line, text, whisker
from reports.quantities import byte_count, digits, interval_of, limits, plain, seconds, times
from reports.rows import Comparison, Mean, Row, StepSeries

_STEP_LANE = 13.0


def ranking(comparison: Comparison, frame: Frame) -> Markup:
    """Examples per second with intervals, the baseline as a line through all."""
    rows = [row for row in comparison.rows if row.rate is not None]
    if not rows:
        return Markup("")
    # An implausible rate must not squeeze the others; its bar is cut at the edge.
    drawn = [row.rate for row in rows if row.rate and row.status == "ok"] or [
        row.rate for row in rows if row.rate
    ]
    tops = [rate.interval.high if rate.interval else rate.value for rate in drawn]
    # An interval of three noisy repeats can reach far: bars stay readable, the whisker is cut without a cap.
    high = min(max(tops), 2.5 * max(rate.value for rate in drawn))
    scale = Scale(low=0, high=high * 1.02, left=frame.left, right=frame.right)
    pitch = 34 + frame.label_above
    bottom = 6 + pitch * len(rows)
    parts = [axis(scale, 4, bottom, _thousands, most=frame.most_ticks)]
    base = next((row.rate.value for row in rows if row.is_baseline and row.rate), None)
    for i, row in enumerate(rows):
        top = 6 + i * pitch
        if base is not None:
            # Interrupted where labels stand above the bars.
            parts.append(
                line(scale.at(base), top + frame.label_above, scale.at(base), top + pitch, kind="baseline")
            )
        parts.append(_ranking_lane(row, frame, scale, top))
    caption = "examples per second; dashed: the baseline" if base is not None else "examples per second"
    parts.append(text(frame.left, bottom + 32, caption, kind="tick"))
    label = f"Examples per second by strategy on {comparison.workload}, with 95 % intervals"
    return chart(parts, width=frame.width, height=bottom + 40, label=label, kind=frame.width_class)


def bytes_sent(comparison: Comparison, frame: Frame) -> Markup:
    """Predicted payload, TCP and interface bytes side by side."""
    # On an interface alone there is what workers and driver say to each other, and nothing of the strategy.
    rows = [
        row
        for row in comparison.rows
        if any(mean and mean.value > 0 for mean in (row.payload_bytes, row.tcp_bytes))
    ]
    if not rows:
        return Markup("")
    high = max(mean.high for row in rows for _, _, mean in _layers(row) if mean)
    room = 0 if frame.wide else 74
    scale = Scale(low=0, high=high, left=frame.left, right=frame.right - room)
    pitch = 52 + frame.label_above
    bottom = 6 + pitch * len(rows)
    parts = [axis(scale, 4, bottom, byte_count, most=frame.most_ticks - 1)]
    for i, row in enumerate(rows):
        top = 6 + i * pitch
        parts.append(row_label(row, frame, top, 24))
        for j, (name, kind, mean) in enumerate(_layers(row)):
            y = top + frame.label_above + 3 + j * 14
            if mean is None:
                parts.append(text(scale.left + 4, y + 9, f"{name}: not measured", kind="small"))
                continue
            x = scale.at(mean.value)
            parts.append(
                bar(
                    scale,
                    (0, mean.value),
                    (y, 11),
                    kind=kind,
                    tip=f"{row.strategy}: {name} {byte_count(mean.value)}",
                )
            )
            parts.append(text(x + 5, y + 9.5, _byte_label(row, name, mean, wide=frame.wide), kind="small"))
    label = f"Bytes sent per step by strategy on {comparison.workload}: predicted payload, TCP, interface"
    return chart(parts, width=frame.width, height=bottom + 22, label=label, kind=frame.width_class)


def step_times(comparison: Comparison, frame: Frame) -> Markup:
    """Every step of every repeat as a dot, warm-up apart, the median as a tick."""
    rows = [row for row in comparison.rows if row.steps]
    every = [value for row in rows for steps in row.steps for value in steps.seconds]
    if not every:
        return Markup("")
    low, high = min(every), max(every)
    scale = Scale(low=low * 0.93, high=high * 1.07, left=frame.left, right=frame.right, log=True)
    parts: list[Markup] = []
    y = 6.0
    for row in rows:
        parts.append(row_label(row, frame, y, _STEP_LANE * len(row.steps) / 2 + 4))
        y += frame.label_above
        for steps in row.steps:
            parts.append(_step_lane(steps, scale, y, frame, row.strategy))
            y += _STEP_LANE
        y += 10
    grid = axis(scale, 4, y, seconds, most=frame.most_ticks)
    label = f"Distribution of step times by strategy and repeat on {comparison.workload}, logarithmic axis"
    return chart([grid, *parts], width=frame.width, height=y + 22, label=label, kind=frame.width_class)


def time_split(comparison: Comparison, frame: Frame) -> Markup:
    """The median step as the control's part and exposed communication."""
    rows = [row for row in comparison.rows if row.p50_s is not None]
    if not any(row.exposed_comm_s for row in rows):
        return Markup("")
    high = max(row.p50_s.value for row in rows if row.p50_s)
    scale = Scale(low=0, high=high * 1.02, left=frame.left, right=frame.right)
    pitch = 30 + frame.label_above
    bottom = 6 + pitch * len(rows)
    parts = [axis(scale, 4, bottom, seconds, most=frame.most_ticks)]
    parts += [_split_lane(row, frame, scale, 6 + i * pitch) for i, row in enumerate(rows)]
    label = f"Median step time on {comparison.workload}: computing and exposed communication"
    return chart(parts, width=frame.width, height=bottom + 22, label=label, kind=frame.width_class)


def _ranking_lane(row: Row, frame: Frame, scale: Scale, top: float) -> Markup:
    if row.rate is None:
        return Markup("")
    y = top + frame.label_above + 5
    tip = f"{row.strategy}: {plain(row.rate.value)} examples/s, {interval_of(row.rate)}, n={row.n}"
    kind = f"bar {row.mark.kind}" if row.status == "ok" else "bar implausible"
    parts = [
        row_label(row, frame, top, 15),
        bar(scale, (0, row.rate.value), (y, 20), kind=kind, tip=tip),
    ]
    if row.rate.interval is not None:
        parts.append(whisker(scale, row.rate.interval.low, row.rate.interval.high, y + 10, half=5))
    ratio, basis = _value_text(row)
    if frame.wide:
        x = frame.right + 14
        parts += [
            text(x, y + 14, ratio, kind="value"),
            text(x + (62 if len(ratio) < 7 else 92), y + 14, basis, kind="small"),
        ]
    else:
        parts.append(text(frame.right, top + 14, f"{ratio} · {basis}", kind="small", anchor="end"))
    return Markup("").join(parts)


def _value_text(row: Row) -> tuple[str, str]:
    """The ratio of a row, and what it rests on."""
    if row.status != "ok":
        return row.status, f"n={row.n}"
    if row.is_baseline:
        return "baseline", f"n={row.n}"
    interval = limits(row.ratio.interval) if row.ratio else ""
    return times(row.ratio.value if row.ratio else None), f"{interval or 'no interval'}, n={row.n}"


def _split_lane(row: Row, frame: Frame, scale: Scale, top: float) -> Markup:
    if row.p50_s is None:
        return Markup("")
    y = top + frame.label_above + 4
    total = row.p50_s.value
    exposed = row.exposed_comm_s.value if row.exposed_comm_s else None
    shown = min(max(exposed or 0.0, 0.0), total)
    silent = row.mark.kind in ("control", "reference")
    computing = "bar compute" if exposed is not None or silent else "bar unsplit"
    parts = [
        row_label(row, frame, top, 14),
        bar(
            scale,
            (0, total - shown),
            (y, 18),
            kind=computing,
            tip=f"{row.strategy}: computing {seconds(total - shown)}",
        ),
    ]
    if exposed is not None:
        tip = f"{row.strategy}: exposed communication {seconds(exposed)}"
        parts.append(bar(scale, (total - shown, total), (y, 18), kind="bar exposed", tip=tip))
        share = f"{seconds(exposed)} of {seconds(total)} exposed"
    else:
        share = f"{seconds(total)}, {'sends nothing' if silent else 'not split'}"
    if frame.wide:
        parts.append(text(frame.right + 14, y + 13, f"{share}, n={row.n}", kind="small"))
    else:
        parts.append(text(frame.right, top + 14, share, kind="small", anchor="end"))
    return Markup("").join(parts)


def _step_lane(steps: StepSeries, scale: Scale, top: float, frame: Frame, strategy: str) -> Markup:
    spread = _STEP_LANE - 6
    # A fixed scatter, so that the same run always makes the same page.
    points = [
        (scale.at(value), top + 3 + (i * 7 % 11) / 10 * spread) for i, value in enumerate(steps.seconds)
    ]
    parts = [
        dots(points[: steps.n_warmup], kind="dots warmup"),
        dots(points[steps.n_warmup :], kind="dots timed"),
    ]
    if steps.p50:
        x = scale.at(steps.p50)
        parts += [
            line(x, top, x, top + _STEP_LANE - 1, kind="median-back"),
            line(x, top, x, top + _STEP_LANE - 1, kind="median"),
        ]
    if frame.wide:
        shown = f"repeat {steps.repeat}: median {seconds(steps.p50)}"
        parts.append(text(frame.right + 14, top + _STEP_LANE - 3, shown, kind="small"))
    name = f"{strategy}, repeat {steps.repeat}: median {seconds(steps.p50)}, {steps.n_warmup} warm-up steps"
    return Markup("<g><title>{}</title>{}</g>").format(name, Markup("").join(parts))


def _layers(row: Row) -> Sequence[tuple[str, str, Mean | None]]:
    return (
        ("payload", "bar payload", row.payload_bytes),
        ("TCP", "bar tcp", row.tcp_bytes),
        ("interface", "bar interface", row.interface_bytes),
    )


def _byte_label(row: Row, name: str, mean: Mean, *, wide: bool) -> str:
    shown = byte_count(mean.value)
    if name == "TCP" and row.tcp_over_payload is not None:
        apart = times(row.tcp_over_payload, significant=4)
        shown += f" ({apart} payload)" if wide else f", {apart}"
    return f"{name} {shown}, n={mean.n}" if wide else shown


def _thousands(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == 0 else digits(value)
