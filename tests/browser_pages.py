"""Pages in a real browser: what they say to its console or ask for, and what axe finds."""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import cast
from xml.etree import ElementTree as ET

import pytest
from playwright.sync_api import Browser, BrowserContext, Locator, Page, expect

# Deque's axe-core 4.14.1; its licence, the MPL 2.0, lies beside it.
_AXE = Path(__file__).parent / "vendor" / "axe-core" / "axe.min.js"
DESKTOP, PHONE = 1280, 360
SVG = "{http://www.w3.org/2000/svg}"
SURROUNDINGS = [
    (DESKTOP, "light", True),
    (DESKTOP, "dark", True),
    (PHONE, "light", True),
    (PHONE, "dark", True),
    (DESKTOP, "light", False),
    (PHONE, "light", False),
]
"""Width, colour scheme and whether scripts run."""
_INTRUDER = (
    "() => { const script = document.createElement('script'); script.textContent = 'window.intruder = 1';"
    " document.body.append(script); }"
)


def listened(context: BrowserContext, page: Path) -> tuple[list[str], Page]:
    """An opened page, and what it says to the console or asks for."""
    log: list[str] = []
    opened = context.new_page()
    opened.on("console", lambda message: log.append(f"console: {message.text}"))
    opened.on("pageerror", lambda error: log.append(f"error: {error}"))
    opened.on("request", lambda request: log.append(request.url) if request.url != page.as_uri() else None)
    opened.goto(page.as_uri())
    return log, opened


def unfold(page: Page) -> None:
    """Open every part of a page."""
    page.evaluate("document.querySelectorAll('details').forEach(each => { each.open = true; })")


def violations(page: Page) -> list[tuple[str, str]]:
    """Accessibility rules that a page breaks, and the first element that breaks each."""
    # The console runs what the page may not.
    page.evaluate(_AXE.read_text(encoding="utf-8"))
    results = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        (cast("str", violation["id"]), cast("str", violation["nodes"][0]["html"]))
        for violation in results["violations"]
    ]


def hold_saved_files(page: Page, figure: Locator, names: list[str]) -> None:
    """Hold a chart to files that stand by themselves, in SVG and in PNG."""
    expect(figure.locator(".live svg")).to_be_visible()
    files = {}
    for kind in ("SVG", "PNG"):
        with page.expect_download() as download:
            figure.get_by_role("button", name=f"save as {kind}").click()
        assert re.fullmatch(rf"[a-z0-9-]+\.{kind.lower()}", download.value.suggested_filename)
        files[kind] = Path(download.value.path()).read_bytes()
    root = ET.fromstring(files["SVG"])
    texts = "\n".join("".join(element.itertext()) for element in root.iter(f"{SVG}text"))
    for text in (str(figure.locator(".picture").get_attribute("aria-label")), *names):
        assert text in texts
    assert not {element.tag for element in root.iter()} & {f"{SVG}script", f"{SVG}image", f"{SVG}a"}
    values = [value for element in root.iter() for value in element.attrib.values()]
    assert not [value for value in values if "var(" in value or "inherit" in value]
    assert files["PNG"].startswith(b"\x89PNG\r\n\x1a\n")
    size = struct.unpack(">II", files["PNG"][16:24])
    assert size == pytest.approx([2 * float(root.attrib[side]) for side in ("width", "height")], abs=2)
    # A picture of one colour would be much smaller.
    assert len(files["PNG"]) > 5_000


def refuse_other_scripts(chromium: Browser, path: Path) -> None:
    """Hold a page to running its own script alone."""
    context = chromium.new_context()
    log, page = listened(context, path)
    page.evaluate(_INTRUDER)
    assert page.evaluate("window.intruder ?? null") is None
    context.close()
    assert len(log) == 1
    assert "Content Security Policy" in log[0]


def fit_and_be_read(
    chromium: Browser,
    path: Path,
    figure_of: Callable[[Page], Locator],
    width: int,
    scheme: str,
    scripts: bool,
) -> None:
    """Hold a page to its width, to its colours and to what axe asks for, its folds closed and open."""
    context = chromium.new_context(
        viewport={"width": width, "height": 900},
        color_scheme="dark" if scheme == "dark" else "light",
        java_script_enabled=scripts,
        reduced_motion="reduce",
    )
    page = context.new_page()
    page.goto(path.as_uri())
    figure = figure_of(page)
    figure.scroll_into_view_if_needed()
    assert page.locator(".toolbar").is_visible() is scripts
    # Parts open without scripts too.
    page.locator("details.part:has(> .scroll) > summary").first.click()
    assert page.locator("details table:visible").count() > 0
    if not scripts:
        expect(figure.locator(".undrawn")).to_contain_text("the tables hold the same numbers")
    else:
        expect(figure.locator(".live svg")).to_be_visible()
        expect(figure.locator(".undrawn")).to_be_hidden()
        _hold_to_axe(page, width)
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert paper == ("rgb(20, 23, 26)" if scheme == "dark" else "rgb(251, 250, 247)")
        assert page.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "auto"
    context.close()


def _hold_to_axe(page: Page, width: int) -> None:
    # What is folded away would not be looked at.
    unfold(page)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    assert violations(page) == []
