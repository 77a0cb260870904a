"""Charts of a report as files: each stands by itself, in SVG and PNG, under a safe name of its own."""

from __future__ import annotations

import dataclasses
import json
import re
import struct
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest
from synthetic_run import FORMULA, MARKDOWN, SCRIPT, SINGLE, Case, write_run

import reports
from harness.cli import main
from reports.compare import build
from reports.figures import charts, curves, standalone
from reports.figures.legend import KINDS, legend_of
from reports.figures.palette import light_palette
from reports.figures.renderer import WIDE_PX, svg
from reports.figures.report_charts import report_charts
from reports.figures.specification import Axis, Bar, BarChart, Lane
from reports.load import load
from reports.pages.chart_files import ChartFile, file_stems

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture(scope="module")
def files(full_run: Path) -> tuple[ChartFile, ...]:
    return reports.charts_of([full_run], "svg")


def words(root: ET.Element) -> list[str]:
    return ["".join(element.itertext()) for element in root.iter(f"{SVG}text")]


def test_every_chart_of_the_page_has_its_file(files: tuple[ChartFile, ...], full_run: Path) -> None:
    html = reports.render([full_run], "html")
    shown = re.findall(r'<figure class="chart" data-chart="([^"]+)"', html)
    assert sorted(file.chart for file in files) == sorted(shown)
    assert len({file.name for file in files}) == len(files)
    names = {file.chart: file.name for file in files}
    assert names["comparison-0-ranking"] == "wide-mlp-2x1-ranking.svg"
    assert names["comparison-1-loss-by-step"] == "digits-cnn-2x1-loss-by-step.svg"


def test_each_file_stands_by_itself(files: tuple[ChartFile, ...]) -> None:
    for file in files:
        text = file.content.decode()
        assert text.startswith('<?xml version="1.0" encoding="UTF-8"?>')
        assert "var(" not in text
        assert "inherit" not in text
        root = ET.fromstring(file.content)
        tags = {element.tag for element in root.iter()}
        assert not tags & {f"{SVG}script", f"{SVG}foreignObject", f"{SVG}image", f"{SVG}use", f"{SVG}a"}
        assert root.findtext(f"{SVG}title") == " ".join(file.label.split())
        assert "DejaVu Sans" in root.attrib["font-family"]
        ground = root.find(f"{SVG}rect")
        assert ground is not None
        assert (ground.attrib["width"], ground.attrib["fill"]) == ("100%", "#ffffff")
        assert any(file.where.split(" · ")[-1] in line for line in words(root))


def test_colours_are_those_of_the_style_sheet_in_the_light() -> None:
    palette = light_palette()
    assert palette.colors["blue"] == "#0b6aa8"
    assert palette.colors["accent"] == palette.colors["blue"]
    assert palette.fill_in("a var(--ink) b") == "a #1c1f23 b"


@pytest.mark.parametrize("kind", KINDS)
def test_a_legend_has_the_colour_in_which_its_bar_is_drawn(kind: str) -> None:
    lane = Lane(key="a", name="a", mark="", bars=(Bar(kind=kind, end=1.0, tip=""),))
    chart = BarChart(label="", axis=Axis(name="", unit="number"), lanes=(lane,))
    (entry,) = legend_of(chart)
    drawn = ET.fromstring(svg(chart, width=WIDE_PX))
    (bar,) = [
        element
        for element in drawn.iter(f"{SVG}path")
        if {element.get("fill"), element.get("stroke")} & {"var(--panel)", f"var(--{entry.color})"}
    ]
    attribute = "stroke" if entry.form == "outline" else "fill"
    assert bar.attrib[attribute] == f"var(--{entry.color})"


def test_lines_are_named_in_a_legend_in_their_colours(files: tuple[ChartFile, ...]) -> None:
    (losses,) = [file for file in files if file.name == "wide-mlp-2x1-loss-by-step.svg"]
    root = ET.fromstring(losses.content)
    children = list(root)
    for name in ("all-reduce", "ps:staleness=2,sync=true", "single"):
        (at,) = [i for i, each in enumerate(children) if each.tag == f"{SVG}text" and each.text == name]
        color = children[at - 1].attrib["stroke"]
        assert color in light_palette().colors.values()
        inner = root.find(f"{SVG}svg")
        assert inner is not None
        assert any(path.get("stroke") == color for path in inner.iter(f"{SVG}path"))


def test_level_lines_keep_their_length(files: tuple[ChartFile, ...]) -> None:
    (ranking,) = [file for file in files if file.name == "wide-mlp-2x1-ranking.svg"]
    inner = ET.fromstring(ranking.content).find(f"{SVG}svg")
    assert inner is not None
    level = [re.match(r"M([\d.]+) ([\d.]+)(?:L([\d.]+) \2|H([\d.]+))", path.get("d", "")) for path in inner]
    lengths = [abs(float(found[3] or found[4]) - float(found[1])) for found in level if found]
    # The interval of each of seven strategies with three repeats.
    assert len([length for length in lengths if length > 2]) >= 7


def test_png_is_twice_as_large_and_shows_chart_and_text(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [Case(workload="w", strategy="ps"), Case(workload="w", **SINGLE)])
    drawn = {file.chart: file for file in reports.charts_of([run], "svg")}
    pictures = {file.chart: file for file in reports.charts_of([run], "png")}
    assert set(pictures) == set(drawn)
    for chart, file in pictures.items():
        assert file.name == drawn[chart].name.removesuffix("svg") + "png"
        assert file.content.startswith(b"\x89PNG\r\n\x1a\n")
        size = struct.unpack(">II", file.content[16:24])
        root = ET.fromstring(drawn[chart].content)
        assert size == pytest.approx([2 * float(root.attrib[side]) for side in ("width", "height")], abs=2)
    document = drawn["comparison-0-ranking"].content.decode()
    without_text = re.sub(r"<text.*?</text>", "", document)
    without_bars = re.sub(r"<svg x=.*?</svg>", "", document, flags=re.DOTALL)
    ground = re.sub(r"<text.*?</text>|<path[^>]*>(?:</path>)?", "", without_bars)
    assert len({standalone.png(each) for each in (document, without_text, without_bars, ground)}) == 4


def test_without_a_font_there_is_no_png_and_a_way_out(
    full_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    standalone._writes_text.cache_clear()
    monkeypatch.setattr(standalone.resvg_py, "svg_to_bytes", lambda **options: b"blank")
    with pytest.raises(reports.ReportError, match=r"format: png needs one of the fonts .* or use svg"):
        reports.charts_of([full_run], "png")
    standalone._writes_text.cache_clear()


HOSTILE = (
    SCRIPT,
    FORMULA,
    MARKDOWN,
    "../../etc/passwd",
    "a/b\\c",
    "\N{SNOWMAN}",
    "CON",
    "w" * 300,
    "a\x00\x1bb",
)


def test_hostile_names_make_safe_names_and_inert_text(tmp_path: Path) -> None:
    cases = [Case(workload=name, strategy=name) for name in HOSTILE]
    files = reports.charts_of([write_run(tmp_path / "run", cases, n_repeats=2)], "svg")
    assert len({file.name for file in files}) == len(files) >= 3 * len(HOSTILE)
    for file in files:
        assert re.fullmatch(r"[a-z0-9][a-z0-9-]{0,120}\.svg", file.name)
        root = ET.fromstring(file.content)
        assert not [element for element in root.iter() if element.tag == f"{SVG}script"]
    assert any(SCRIPT in line for file in files for line in words(ET.fromstring(file.content)))


def test_sections_that_would_have_one_name_get_numbers(tmp_path: Path) -> None:
    cases = [Case(workload=name, strategy="ps") for name in ("a b", "a-b", "a-b-2x1")]
    runs = [load(write_run(tmp_path / name, cases)) for name in ("before", "after")]
    charted = report_charts(build(runs))
    stems = file_stems(charted)
    rankings = [stem for stem in stems if stem.endswith("-ranking")]
    assert len(set(stems)) == len(stems)
    assert rankings[:2] == ["a-b-2x1-ranking", "a-b-2x1-2-ranking"]
    assert len(rankings) == 6


def test_a_file_s_name_tells_links_and_computations_apart(tmp_path: Path) -> None:
    plain = Case(workload="w", strategy="ps")
    cases = [
        plain,
        dataclasses.replace(plain, xla=True),
        dataclasses.replace(plain, device="gpu", tf32=False),
        dataclasses.replace(plain, link_mbit=(100.0, 100.0)),
    ]
    run = write_run(tmp_path / "run", cases)
    names = {file.name for file in reports.charts_of([run], "svg")}
    distinct = {f"w-2x1{by}-ranking.svg" for by in ("", "-xla", "-tf32-off", "-100mbit")}
    assert distinct <= names


def test_several_runs_are_named_in_their_pictures(tmp_path: Path) -> None:
    cases = [Case(workload="w", strategy="ps")]
    runs = [write_run(tmp_path / name, cases, seed=i) for i, name in enumerate(("before", "after"))]
    files = reports.charts_of(runs, "svg")
    assert {f"{run.name} ({load(run).name})" for run in runs} == {
        file.where.rpartition("run ")[2] for file in files
    }


def test_a_run_without_figures_has_no_files(tmp_path: Path) -> None:
    assert reports.charts_of([write_run(tmp_path / "run", [])], "svg") == ()


def test_the_list_of_charts_leaves_none_out() -> None:
    text = Path(standalone.__file__).with_name("report_charts.py").read_text()
    known = {
        name
        for module in (charts, curves)
        for name, drawing in vars(module).items()
        if getattr(drawing, "__module__", "") == module.__name__
        and not name.startswith("_")
        and "Chart" in str(getattr(drawing, "__annotations__", {}).get("return", ""))
    }
    assert len(known) > 10
    assert all(re.search(rf"\b(?:charts|curves)\.{name}\b", text) for name in known)


def test_files_are_written_where_the_command_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", [Case(workload="w", strategy="ps")])
    assert main(["report", str(run), "--format", "svg", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["folder"] == str(run / "charts")
    assert sorted(item["file"] for item in answer["files"]) == sorted(map(str, (run / "charts").iterdir()))
    assert answer["files"][0]["chart"] == "comparison-0-ranking"
    assert main(["report", str(run), str(tmp_path), "--format", "png"]) == 2
    assert "out: must be given for charts of several runs" in capsys.readouterr().err
    (tmp_path / "file").touch()
    assert main(["report", str(run), "--format", "svg", "--out", str(tmp_path / "file")]) == 2
    assert "out: must be a folder that can be written" in capsys.readouterr().err
