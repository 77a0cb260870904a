"""Scripts of charts: each form drawn as SVG by a real browser."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from xml.etree import ElementTree as ET

import pytest
from playwright.sync_api import Browser, Page

from reports.charts.in_page import KINDS, as_data, charts_source, echarts_source
from reports.charts.specification import (
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

pytestmark = pytest.mark.browser

WIDE_PX, NARROW_PX = 1060, 340
HOSTILE = "<script>\"'&{red|x}|</script>"
SECONDS = Axis(name="seconds", unit="seconds")


@pytest.fixture(scope="module")
def scripts(chromium: Browser) -> Iterator[Page]:
    """A page that has the scripts of charts, and nothing else."""
    context = chromium.new_context()
    page = context.new_page()
    page.evaluate(f"{echarts_source()}\n{charts_source()}\n0")
    yield page
    context.close()


def draw(scripts: Page, chart: Chart, width: int = WIDE_PX) -> ET.Element:
    return ET.fromstring(
        scripts.evaluate("([chart, width]) => charts.svg(chart, width)", [as_data(chart), width])
    )


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
                bars=(Bar(kind="compute", end=1.0, tip=""), Bar(kind="transfer", start=1.0, end=3.0, tip="")),
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
def test_every_form_is_well_formed_and_holds_text_only_as_text(scripts: Page, name: str, width: int) -> None:
    root = draw(scripts, CHARTS[name], width)
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert tags <= {"svg", "g", "path", "polyline", "text", "rect", "defs", "clipPath", "tspan", "style"}
    assert root.attrib["width"] == str(width)
    # No colour of its own: it follows the style sheet, dark or light.
    colors = {value for element in root.iter() for key in ("fill", "stroke") if (value := element.get(key))}
    assert {color for color in colors if not color.startswith("var(--")} <= {"none", "transparent", "#000"}
    # Names of lanes and points lose their middle where there is no room for all of them.
    assert any("<scr" in (element.text or "") for element in root.iter())


def test_ids_of_charts_in_one_page_differ(scripts: Page) -> None:
    ids = [
        {e.attrib["id"] for e in draw(scripts, CHARTS["lines"]).iter() if "id" in e.attrib} for _ in range(2)
    ]
    assert ids[0]
    assert not ids[0] & ids[1]


def test_bars_have_the_colours_of_their_legend(scripts: Page) -> None:
    for kind, entry in KINDS.items():
        one = Lane(key="a", name="a", mark="", bars=(Bar(kind=kind, end=1.0, tip=""),))
        root = draw(scripts, BarChart(label="", axis=Axis(name="", unit="number"), lanes=(one,)))
        attribute = "stroke" if entry.form == "outline" else "fill"
        assert f"var(--{entry.color})" in {element.get(attribute) for element in root.iter()}


@pytest.mark.parametrize("width", [WIDE_PX, NARROW_PX])
def test_a_long_name_is_wrapped_and_not_cut(scripts: Page, width: int) -> None:
    name = "compressed-all-reduce:compressor=top-k,ratio=0.01"
    bars = (Bar(kind="tcp", end=1.0, tip=""),)
    one = Lane(
        key=name, name=name, mark="statistical", bars=bars, value="1.73×", remark="not ranked: control"
    )
    root = draw(scripts, BarChart(label="", axis=SECONDS, lanes=(one,)), width)
    text = "".join("".join(element.text or "" for element in root.iter()).split())
    assert name in text
    assert "notranked:control" in text


def test_bars_end_where_their_values_are(scripts: Page) -> None:
    chart = BarChart(
        label="", axis=Axis(name="", unit="number", high=4.0), lanes=(lane("a", 1.0), lane("b", 3.0))
    )
    root = draw(scripts, chart)
    bars = [
        element.attrib["d"]
        for element in root.iter()
        if element.get("fill") == "var(--blue)" and "d" in element.attrib
    ]
    widths = [
        max(xs) - min(xs) for xs in ([float(x) for x in re.findall(r"[ML](-?[\d.]+) ", d)] for d in bars)
    ]
    assert widths[1] == pytest.approx(3 * widths[0], rel=0.02)


def test_a_gap_stays_a_gap(scripts: Page) -> None:
    root = draw(scripts, CHARTS["lines"])
    drawn = [
        e.attrib["d"] for e in root.iter() if e.get("stroke") == "var(--blue)" and e.get("fill") == "none"
    ]
    # Each of the two points begins anew: nothing leads over the one that is missing.
    assert drawn
    assert all("L" not in path for path in drawn)


@pytest.mark.parametrize("width", [WIDE_PX, NARROW_PX])
def test_points_in_one_place_have_their_names_beside_each_other(scripts: Page, width: int) -> None:
    near = tuple(
        Point(key=f"p{i}", name=f"p{i}", x=1.0 + i / 1000, y=5.0, kind=kind, tip="")
        for i, kind in enumerate(("front", "front", "behind", "behind", "behind", "behind"))
    )
    far = Point(key="far", name="far", x=2.0, y=9.0, kind="behind", tip="")
    axis = Axis(name="", unit="number", low=0.0, high=10.0)
    chart = PointChart(label="", x=SECONDS, y=axis, points=(*near, far), joined=True, front="", behind="")
    root = draw(scripts, chart, width)
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


def test_a_value_between_two_gaps_is_a_dot(scripts: Page) -> None:
    def dots(chart: LineChart) -> int:
        root = draw(scripts, chart)
        return sum(e.get("fill") == "var(--blue)" for e in root.iter())

    assert dots(nights({})) == 0
    assert dots(nights({20_040: None, 20_042: None})) == 1


@pytest.mark.parametrize("width", [WIDE_PX, NARROW_PX])
def test_names_of_events_lie_in_the_picture_beside_each_other_and_each_once(
    scripts: Page, width: int
) -> None:
    days = (20_000, 20_050, 20_050, 20_051, 20_052, 20_099)
    events = tuple(Event(x=float(day), text=f"since {day}") for day in days)
    root = draw(scripts, nights({}, events), width)
    named: dict[str, tuple[float, float, float]] = {}
    for element in root.iter():
        if (element.text or "").startswith("since"):
            assert element.text not in named
            x, y = (float(match) for match in re.findall(r"-?[\d.]+", element.attrib["transform"]))
            length = 0.62 * 11 * len(str(element.text))
            anchor = element.get("text-anchor")
            left = x - {"end": length, "middle": length / 2}.get(str(anchor), 0.0)
            named[str(element.text)] = (left, left + length, y)
    # For the third of three days in a row there is no room.
    assert set(named) == {"since 20000", "since 20050", "since 20051", "since 20099"}
    assert all(left >= 0 and right <= width for left, right, _ in named.values())
    ordered = sorted(named.values(), key=lambda entry: (entry[2], entry[0]))
    for one, other in itertools.pairwise(ordered):
        assert one[2] != other[2] or one[1] <= other[0]
    assert len({y for *_, y in named.values()}) == 2


@pytest.mark.parametrize("width", [WIDE_PX, NARROW_PX])
def test_an_interval_reaches_from_one_limit_to_the_other(scripts: Page, width: int) -> None:
    axis = Axis(name="", unit="number", high=4.0)
    root = draw(scripts, BarChart(label="", axis=axis, lanes=(lane("a", 2.0, (1.0, 3.0)),)), width)
    bar = next(e.attrib["d"] for e in root.iter() if e.get("fill") == "var(--blue)" and "d" in e.attrib)
    start, length = map(float, re.match(r"M([\d.]+) [\d.]+l([\d.]+) ", bar).groups())  # type: ignore[union-attr]
    (drawn,) = [e.attrib["d"] for e in root.iter() if e.get("stroke") == "var(--ink)" and "d" in e.attrib]
    low, high = map(float, re.match(r"M([\d.]+) [\d.]+L([\d.]+) ", drawn).groups())  # type: ignore[union-attr]
    # The bar is two units long.
    assert low == pytest.approx(start + length / 2, abs=1.0)
    assert high == pytest.approx(start + 3 * length / 2, abs=1.0)


def test_a_level_line_is_as_long_as_what_it_joins(scripts: Page) -> None:
    chart = LineChart(label="", x=SECONDS, y=SECONDS, lines=(line(((1.0, 2.0), (5.0, 2.0))),))
    root = draw(scripts, chart)
    drawn = [
        e.attrib["d"] for e in root.iter() if e.get("stroke") == "var(--blue)" and e.get("fill") == "none"
    ]
    assert any(re.fullmatch(r"M(\d+) [\d.]+L(\d+) [\d.]+", path) for path in drawn)


def test_limits_without_end_stop_at_the_edge_of_the_picture(scripts: Page) -> None:
    lanes = (lane("a", 1.0, (0.0, math.inf)), lane("b", 2.0, (math.nan, math.nan)))
    chart = BarChart(label="", axis=Axis(name="", unit="number", high=2.0), lanes=lanes)
    root = draw(scripts, chart)
    numbers = [float(x) for e in root.iter() for x in re.findall(r"[ML](-?[\d.]+) ", e.get("d", ""))]
    assert max(numbers) <= WIDE_PX


def test_an_interval_beyond_the_axis_is_not_drawn_over_what_stands_there(scripts: Page) -> None:
    chart = BarChart(
        label="", axis=Axis(name="", unit="number", high=1.0), lanes=(lane("a", 50.0, (40.0, 60.0)),)
    )
    root = draw(scripts, chart)
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
    scripts: Page, x: Axis, y: Axis, point: tuple[float, float | None], tip: str
) -> None:
    of_none = Line(key="none", name="none", color=0, points=(point, (1.0, 1.0)))
    chart = LineChart(label="", x=x, y=y, lines=(of_none,))
    first = scripts.evaluate(
        "(chart) => charts.draw(chart, 1060, {live: true}).option.series[0].data[0]", as_data(chart)
    )
    assert first["tip"] == tip
