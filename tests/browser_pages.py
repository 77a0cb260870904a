"""Pages in a real browser: what they say to its console or ask for, and what axe finds."""

from __future__ import annotations

from pathlib import Path
from typing import cast

from playwright.sync_api import BrowserContext, Page

# Deque's axe-core 4.14.1; its licence, the MPL 2.0, lies beside it.
_AXE = Path(__file__).parent / "vendor" / "axe-core" / "axe.min.js"
DESKTOP, PHONE = 1280, 360
INTRUDER = (
    "() => { const script = document.createElement('script'); script.textContent = 'window.intruder = 1';"
    " document.body.append(script); }"
)


def listened(context: BrowserContext, page: Path) -> tuple[list[str], Page]:
    """An opened page, and what it says to the console or asks for."""
    heard: list[str] = []
    opened = context.new_page()
    opened.on("console", lambda message: heard.append(f"console: {message.text}"))
    opened.on("pageerror", lambda error: heard.append(f"error: {error}"))
    opened.on("request", lambda asked: heard.append(asked.url) if asked.url != page.as_uri() else None)
    opened.goto(page.as_uri())
    return heard, opened


def violations(page: Page) -> list[tuple[str, str]]:
    """What keeps somebody from reading a page: rules, and the first element that breaks each."""
    # The console runs what the page may not.
    page.evaluate(_AXE.read_text(encoding="utf-8"))
    results = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        (cast("str", each["id"]), cast("str", each["nodes"][0]["html"])) for each in results["violations"]
    ]
