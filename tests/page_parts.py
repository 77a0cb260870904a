"""Parts of an HTML page, for tests that look into it without a browser."""

from __future__ import annotations

import base64
import gzip
import json
from html.parser import HTMLParser
from typing import Any


class Page(HTMLParser):
    """Parts of a page: tags with attributes, text outside of scripts, and scripts by their ids."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.scripts: dict[str, str] = {}
        self._script: str | None = None
        self.feed(html)
        self.close()

    @property
    def drawn_from(self) -> dict[str, Any]:
        """Data of the page's script: charts, filters for readers, ratios."""
        packed = base64.b64decode(self.scripts["stratbench-charts"])
        return dict(json.loads(gzip.decompress(packed)))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._script = str(dict(attrs).get("id", "")) if tag == "script" else None

    def handle_endtag(self, tag: str) -> None:
        self._script = None

    def handle_data(self, data: str) -> None:
        if self._script is not None:
            self.scripts[self._script] = self.scripts.get(self._script, "") + data
        else:
            self.text.append(data)
