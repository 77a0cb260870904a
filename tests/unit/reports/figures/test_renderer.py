"""Charts as SVG, drawn without a browser by the scripts that draw them in the page."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
import re
from importlib import resources
from typing import Literal
from xml.etree import ElementTree as ET

import pytest
from quickjs import Context

from reports.figures.renderer import NARROW_PX, WIDE_PX, as_data, charts_source, echarts_source, svg
from reports.figures.specification import (
    Axis,
    Bar,
    BarChart,
    Chart,
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

HOSTILE = "<script>\"'&{red|x}|</script>"
SECONDS = Axis(name="seconds", unit="seconds")


def lane(name: str, end: float | None, interval: tuple[float, float] | None = None) -> Lane:
    return Lane(
        key=name,
        name=name,
        mark="equivalent",
        bars=(Bar(kind="tcp", end=end, tip=name, text=name),),
        interval=interval,
    )


def line(points: tuple[tuple[float, float | None], ...]) -> Line:
    return Line(key=HOSTILE, name=HOSTILE, color=0, points=points)


CHARTS: dict[str, Chart] = {
    "bars": BarChart(
        label="bars", axis=SECONDS, lanes=(lane(HOSTILE, 1.0, (0.9, 1.1)), lane("b", None)), reference=0.5
    ),
    "stacked": BarChart(
        label="stacked",
        axis=SECONDS,
        stacked=True,
        lanes=(
            Lane(
                key="a",
                name=HOSTILE,
                mark="control",
                bars=(Bar(kind="compute", end=1.0, tip=""), Bar(kind="exposed", start=1.0, end=3.0, tip="")),
                value=HOSTILE,
                note=HOSTILE,
            ),
        ),
    ),
    "points": PointChart(
        label="points",
        x=SECONDS,
        y=Axis(name=HOSTILE, unit="times", low=0.0),
        joined=True,
        points=tuple(
            Point(
                key=HOSTILE, name=HOSTILE, x=i + 1.0, y=i * 2.0, kind="front" if i % 2 else "behind", tip=""
            )
            for i in range(4)
        ),
        front="",
        behind="",
    ),
    "lines": LineChart(
        label="lines",
        x=Axis(name="workers", unit="number", log=True, ticks=(1.0, 2.0, 4.0)),
        y=Axis(name="rate", unit="number", log=True),
        lines=(line(((1.0, 10.0), (2.0, None), (4.0, 35.0))),),
        events=(Event(x=2.0, text=HOSTILE),),
    ),
    "strips": StripChart(
        label="strips",
        lanes=(
            StripLane(
                key=HOSTILE,
                name=HOSTILE,
                mark="equivalent",
                repeats=(
                    StripRepeat(
                        seconds=(0.5, 0.01, 0.011, 0.012), n_warmup=1, median=0.011, text=HOSTILE, tip=""
                    ),
                ),
            ),
        ),
    ),
}


@pytest.mark.parametrize("width", [WIDE_PX, NARROW_PX])
@pytest.mark.parametrize("name", CHARTS)
def test_every_form_is_well_formed_and_holds_text_only_as_text(name: str, width: int) -> None:
    root = ET.fromstring(svg(CHARTS[name], width=width))
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert tags <= {"svg", "g", "path", "polyline", "text", "rect", "defs", "clipPath", "tspan", "style"}
    assert root.attrib["width"] == str(width)
    # No colour of its own: it follows the style sheet, dark or light.
    colors = {value for element in root.iter() for key in ("fill", "stroke") if (value := element.get(key))}
    assert {color for color in colors if not color.startswith("var(--")} <= {"none", "transparent", "#000"}
    # Names of lanes and points lose their middle where there is no room for all of them.
    assert any("<scr" in (element.text or "") for element in root.iter())


def test_the_same_chart_is_always_drawn_alike_and_ids_are_its_own() -> None:
    first, other = CHARTS["lines"], dataclasses.replace(CHARTS["lines"], label="other")
    assert svg(first, width=WIDE_PX) == svg(first, width=WIDE_PX)
    ids = [set(re.findall(r'id="([^"]+)"', svg(chart, width=WIDE_PX))) for chart in (first, other)]
    assert ids[0]
    assert not ids[0] & ids[1]


def test_bars_end_where_their_values_are() -> None:
    chart = BarChart(
        label="", axis=Axis(name="", unit="number", high=4.0), lanes=(lane("a", 1.0), lane("b", 3.0))
    )
    root = ET.fromstring(svg(chart, width=WIDE_PX))
    bars = [
        element.attrib["d"]
        for element in root.iter()
        if element.get("fill") == "var(--blue)" and "d" in element.attrib
    ]
    widths = [
        max(xs) - min(xs) for xs in ([float(x) for x in re.findall(r"[ML](-?[\d.]+) ", d)] for d in bars)
    ]
    assert widths[1] == pytest.approx(3 * widths[0], rel=0.02)


def test_a_gap_stays_a_gap() -> None:
    root = ET.fromstring(svg(CHARTS["lines"], width=WIDE_PX))
    drawn = [
        e.attrib["d"] for e in root.iter() if e.get("stroke") == "var(--blue)" and e.get("fill") == "none"
    ]
    # Each of the two points begins anew: nothing leads over the one that is missing.
    assert drawn
    assert all("L" not in path for path in drawn)


@pytest.mark.parametrize("width", [WIDE_PX, NARROW_PX])
def test_points_in_one_place_have_their_names_beside_each_other(width: int) -> None:
    near = tuple(
        Point(key=f"p{i}", name=f"p{i}", x=1.0 + i / 1000, y=5.0, kind=kind, tip="")
        for i, kind in enumerate(("front", "front", "behind", "behind", "behind", "behind"))
    )
    far = Point(key="far", name="far", x=2.0, y=9.0, kind="behind", tip="")
    axis = Axis(name="", unit="number", low=0.0, high=10.0)
    chart = PointChart(label="", x=SECONDS, y=axis, points=(*near, far), joined=True, front="", behind="")
    root = ET.fromstring(svg(chart, width=width))
    places = {
        e.text: e.attrib["transform"] for e in root.iter() if e.text in {"far", *(p.name for p in near)}
    }
    assert len(places) == len(near) + 1
    heights = sorted(float(places[point.name].rpartition(" ")[2].rstrip(")")) for point in near)
    assert min(after - before for before, after in itertools.pairwise(heights)) >= 12


def nights(values: dict[int, float | None], events: tuple[Event, ...] = ()) -> LineChart:
    """A line by date, longer than what is drawn with a dot for every value."""
    days = range(20_000, 20_100)
    points = tuple((float(day), values.get(day, 0.0)) for day in days)
    return LineChart(
        label="",
        x=Axis(name="", unit="date", low=20_000.0, high=20_100.0),
        y=Axis(name="", unit="percent", low=-1.0, high=1.0),
        lines=(Line(key="a", name="a", color=0, points=points),),
        events=events,
    )


def test_a_value_between_two_gaps_is_a_dot() -> None:
    def dots(chart: LineChart) -> int:
        root = ET.fromstring(svg(chart, width=WIDE_PX))
        return sum(e.get("fill") == "var(--blue)" for e in root.iter())

    assert dots(nights({})) == 0
    assert dots(nights({20_040: None, 20_042: None})) == 1


@pytest.mark.parametrize("width", [WIDE_PX, NARROW_PX])
def test_names_of_events_lie_in_the_picture_beside_each_other_and_each_once(width: int) -> None:
    days = (20_000, 20_050, 20_050, 20_051, 20_052, 20_099)
    events = tuple(Event(x=float(day), text=f"since {day}") for day in days)
    root = ET.fromstring(svg(nights({}, events), width=width))
    named: dict[str, tuple[float, float, float]] = {}
    for element in root.iter():
        if (element.text or "").startswith("since"):
            assert element.text not in named
            x, y = (float(each) for each in re.findall(r"-?[\d.]+", element.attrib["transform"]))
            length = 0.62 * 11 * len(str(element.text))
            anchor = element.get("text-anchor")
            left = x - {"end": length, "middle": length / 2}.get(str(anchor), 0.0)
            named[str(element.text)] = (left, left + length, y)
    # For the third of three days in a row there is no room.
    assert set(named) == {"since 20000", "since 20050", "since 20051", "since 20099"}
    assert all(left >= 0 and right <= width for left, right, _ in named.values())
    ordered = sorted(named.values(), key=lambda each: (each[2], each[0]))
    for one, other in itertools.pairwise(ordered):
        assert one[2] != other[2] or one[1] <= other[0]
    assert len({y for *_, y in named.values()}) == 2


def test_the_library_is_the_one_that_was_written_down() -> None:
    kept = resources.files("reports.figures").joinpath("bundle/echarts.min.js.sha256").read_text().split()[0]
    assert hashlib.sha256(echarts_source().encode()).hexdigest() == kept
    assert "</script" not in echarts_source()
    for licence in ("LICENSE", "LICENSE.zrender", "NOTICE"):
        assert resources.files("reports.figures").joinpath("bundle", licence).is_file()


@pytest.mark.parametrize("width", [WIDE_PX, NARROW_PX])
def test_an_interval_reaches_from_one_limit_to_the_other(width: int) -> None:
    axis = Axis(name="", unit="number", high=4.0)
    root = ET.fromstring(svg(BarChart(label="", axis=axis, lanes=(lane("a", 2.0, (1.0, 3.0)),)), width=width))
    bar = next(e.attrib["d"] for e in root.iter() if e.get("fill") == "var(--blue)" and "d" in e.attrib)
    start, length = map(float, re.match(r"M([\d.]+) [\d.]+l([\d.]+) ", bar).groups())  # type: ignore[union-attr]
    (drawn,) = [e.attrib["d"] for e in root.iter() if e.get("stroke") == "var(--ink)" and "d" in e.attrib]
    low, high = map(float, re.match(r"M([\d.]+) [\d.]+L([\d.]+) ", drawn).groups())  # type: ignore[union-attr]
    # The bar is two units long.
    assert low == pytest.approx(start + length / 2, abs=1.0)
    assert high == pytest.approx(start + 3 * length / 2, abs=1.0)


def test_a_level_line_is_as_long_as_what_it_joins() -> None:
    chart = LineChart(label="", x=SECONDS, y=SECONDS, lines=(line(((1.0, 2.0), (5.0, 2.0))),))
    root = ET.fromstring(svg(chart, width=WIDE_PX))
    drawn = [
        e.attrib["d"] for e in root.iter() if e.get("stroke") == "var(--blue)" and e.get("fill") == "none"
    ]
    assert any(re.fullmatch(r"M(\d+) [\d.]+L(\d+) [\d.]+", path) for path in drawn)


@pytest.mark.parametrize("name", ["zr0-cls-ring", 'M1 2L3 2"', "style=font-size:12px;", "1.2345 L", "a  b"])
def test_what_makes_pictures_short_changes_no_name(name: str) -> None:
    chart = BarChart(label="", axis=SECONDS, lanes=(lane(name, 1.0),))
    texts = {element.text for element in ET.fromstring(svg(chart, width=WIDE_PX)).iter()}
    assert " ".join(name.split()) in {" ".join((text or "").split()) for text in texts}


def test_limits_without_end_stop_at_the_edge_of_the_picture() -> None:
    lanes = (lane("a", 1.0, (0.0, math.inf)), lane("b", 2.0, (math.nan, math.nan)))
    chart = BarChart(label="", axis=Axis(name="", unit="number", high=2.0), lanes=lanes)
    root = ET.fromstring(svg(chart, width=WIDE_PX))
    numbers = [float(x) for e in root.iter() for x in re.findall(r"[ML](-?[\d.]+) ", e.get("d", ""))]
    assert max(numbers) <= WIDE_PX


def test_an_interval_beyond_the_axis_is_not_drawn_over_what_stands_there() -> None:
    chart = BarChart(
        label="", axis=Axis(name="", unit="number", high=1.0), lanes=(lane("a", 50.0, (40.0, 60.0)),)
    )
    root = ET.fromstring(svg(chart, width=WIDE_PX))
    assert not [e for e in root.iter() if e.get("stroke") == "var(--ink)"]


@pytest.mark.parametrize(
    ("x", "y", "point", "tip"),
    [
        (
            Axis(name="step, from 1 on", unit="number", what="step"),
            Axis(name="loss", unit="number", what="loss"),
            (14.0, 1.1293),
            "none: loss 1.13 at step 14",
        ),
        (
            Axis(name="step, from 1 on", unit="number", what="step"),
            Axis(name="loss", unit="number", what="loss"),
            (12345.0, None),
            "none: no loss at step 12,345",
        ),
        (
            Axis(name="seconds of training", unit="seconds"),
            Axis(name="loss", unit="number", what="loss"),
            (0.25, 2.0),
            "none: loss 2 at 250 ms",
        ),
    ],
)
def test_whoever_points_at_a_line_sees_what_its_values_are(
    x: Axis, y: Axis, point: tuple[float, float | None], tip: str
) -> None:
    of_none = Line(key="none", name="none", color=0, points=(point, (1.0, 1.0)))
    chart = LineChart(label="", x=x, y=y, lines=(of_none,))
    context = Context()
    context.eval(f"{charts_source()}\n;0")
    draw = context.eval(
        "(chart) => JSON.stringify(charts.draw(JSON.parse(chart), 1060, {live: true}).option.series[0].data)"
    )
    (first, _) = json.loads(draw(json.dumps(as_data(chart))))
    assert first["tip"] == tip


@pytest.mark.parametrize(("unit", "x"), [("date", 20_543.375), ("seconds", 20_543.0)])
def test_days_have_the_digits_of_their_hours_and_other_numbers_do_not(
    unit: Literal["date", "seconds"], x: float
) -> None:
    chart = LineChart(
        label="",
        x=Axis(name="", unit=unit, high=20_543.375),
        y=Axis(name="", unit="number", high=20_543.375),
        lines=(Line(key="", name="", color=0, points=((20_543.375, 20_543.375),)),),
        events=(Event(x=20_543.375, text=""),),
    )
    data = json.loads(json.dumps(as_data(chart)))
    assert data["lines"][0]["points"] == [[x, 20_543.0]]
    assert (data["x"]["high"], data["y"]["high"], data["events"][0]["x"]) == (x, 20_543.0, x)
