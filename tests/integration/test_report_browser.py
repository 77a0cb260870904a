"""The HTML report in a real browser: it draws, runs nothing, and asks nobody for anything."""

from __future__ import annotations

import json
import re
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

import reports

# The builder of run folders lives with the report's unit tests.
sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "reports"))
from synthetic_run import SCRIPT, full_cases, write_run

pytestmark = pytest.mark.browser
DEADLINE_S = 90.0


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_run(tmp_path_factory.mktemp("browser") / "run", full_cases())
    path = folder.parent / "report.html"
    path.write_text(reports.render([folder], "html"), encoding="utf-8")
    return path


def chromium(browser: Path, page: Path, folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the headless browser on one page, with a profile of its own and no name that resolves."""
    return subprocess.run(
        [
            str(browser), "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
            "--disable-background-networking", "--disable-component-update", "--disable-sync",
            "--hide-scrollbars", "--no-proxy-server", "--host-resolver-rules=MAP * ~NOTFOUND",
            "--enable-logging=stderr", f"--user-data-dir={folder / 'profile'}", *options, page.as_uri(),
        ],
        capture_output=True, text=True, check=True, timeout=DEADLINE_S,
    )  # fmt: skip


def test_names_stay_text_and_nothing_is_fetched(browser: Path, report: Path, tmp_path: Path) -> None:
    log = tmp_path / "net.json"
    done = chromium(browser, report, tmp_path, "--dump-dom", f"--log-net-log={log}")
    dom = done.stdout
    # A script that ran would have put the marker into the title.
    assert re.search(r"<title>(.*?)</title>", dom)[1] == "stratbench: synthetic"  # type: ignore[index]
    assert SCRIPT.replace("<", "&lt;").replace(">", "&gt;") in dom
    assert re.findall(r"<script[^>]*>", dom) == ['<script type="application/json" id="stratbench-data">']
    assert "<img" not in dom
    assert dom.count("<svg") == 32
    embedded = re.search(r'id="stratbench-data">(.*?)</script>', dom, re.DOTALL)
    assert embedded is not None
    assert json.loads(embedded[1])["schema"] == 1
    # Whatever the page's policy refused, or went wrong in it, is logged to the console.
    assert "CONSOLE" not in done.stderr
    # The browser's own services stay among the requests whatever it is told; a name in the report must not.
    requested = set(re.findall(r'"url":"([^"]*)"', log.read_text(errors="replace")))
    assert not {url for url in requested if "evil.example" in url or "INERT" in url or url.endswith("/x")}


@pytest.mark.parametrize(
    ("width", "options"),
    [(1280, ()), (400, ()), (1280, ("--blink-settings=preferredColorScheme=0",))],
    ids=["desktop", "narrow", "dark"],
)
def test_it_draws_the_charts_of_its_width(
    browser: Path, report: Path, tmp_path: Path, width: int, options: tuple[str, ...]
) -> None:
    shot = tmp_path / "shot.png"
    chromium(browser, report, tmp_path, f"--window-size={width},3000", f"--screenshot={shot}", *options)
    size, pixels = read_png(shot)
    assert size[0] == width
    paper = pixels[:3]
    assert (sum(paper) < 200) is bool(options)
    blue = (0x4A, 0xA3, 0xDF) if options else (0x0B, 0x6A, 0xA8)
    # The bars of strategies that compute the right thing.
    assert count_pixels(pixels, blue) > 3000


def read_png(path: Path) -> tuple[tuple[int, int], bytes]:
    """Size and RGB bytes of an 8-bit, not interlaced PNG, as headless browsers write it."""
    data, at, packed = path.read_bytes(), 8, b""
    width = height = channels = 0
    while at < len(data):
        length, kind = struct.unpack(">I4s", data[at : at + 8])
        body = data[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour = struct.unpack(">IIBB", body[:10])
            assert (depth, colour in (2, 6)) == (8, True)
            channels = 3 if colour == 2 else 4
        elif kind == b"IDAT":
            packed += body
        at += 12 + length
    return (width, height), unfilter(zlib.decompress(packed), width * channels, channels)


def unfilter(raw: bytes, stride: int, channels: int) -> bytes:
    """Undo PNG's line filters and drop alpha.

    Source:
        PNG specification, third edition, section 9.
    """
    import numpy as np

    before = np.zeros(stride, dtype=np.uint8)
    lines = []
    for start in range(0, len(raw), stride + 1):
        kind, line = raw[start], np.frombuffer(raw, np.uint8, stride, start + 1).copy()
        if kind == 2:
            line += before
        elif kind == 1:
            line = np.add.accumulate(line.reshape(-1, channels), axis=0, dtype=np.uint8).ravel()
        elif kind in (3, 4):
            line = np.frombuffer(_sequential(kind, line.tolist(), before.tolist(), channels), np.uint8)
        lines.append(line)
        before = line
    return np.stack(lines).reshape(-1, channels)[:, :3].tobytes()


def _sequential(kind: int, line: list[int], above: list[int], channels: int) -> bytes:
    """The two filters that need the pixel to the left before the next one."""
    for i, value in enumerate(line):
        left = line[i - channels] if i >= channels else 0
        if kind == 3:
            guess = (left + above[i]) // 2
        else:
            corner = above[i - channels] if i >= channels else 0
            rough = left + above[i] - corner
            guess = min((left, above[i], corner), key=lambda near: abs(rough - near))
        line[i] = (value + guess) & 0xFF
    return bytes(line)


def count_pixels(pixels: bytes, colour: tuple[int, int, int]) -> int:
    """Pixels of exactly one colour."""
    import numpy as np

    return int((np.frombuffer(pixels, np.uint8).reshape(-1, 3) == colour).all(axis=1).sum())
