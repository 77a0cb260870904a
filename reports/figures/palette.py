"""Colours and type of charts that stand by themselves: those of the style sheet's light theme."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

_ROOT = re.compile(r":root\s*\{([^}]*)\}")
_VARIABLE = re.compile(r"--([\w-]+)\s*:\s*([^;]+);")
_FONT = re.compile(r"\bfont\s*:\s*[\d.]+px/[\d.]+\s+([^;]+);")
_USE = re.compile(r"var\(--([\w-]+)\)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Palette:
    """Colours by name, and the families of type, best first."""

    colors: dict[str, str]
    font_family: str

    def fill_in(self, text: str) -> str:
        """Text in which every variable of the style sheet is replaced by its colour.

        What looks like one of another name is left as it is: a strategy may be called so.
        """
        return _USE.sub(lambda use: self.colors.get(use[1], use[0]), text)


@cache
def light_palette() -> Palette:
    """What the style sheet of pages says before it turns to readers in the dark."""
    sheet = resources.files("reports.templates").joinpath("report.css").read_text(encoding="utf-8")
    root, font = _ROOT.search(sheet), _FONT.search(sheet)
    assert root is not None
    assert font is not None
    colors: dict[str, str] = {}
    for name, value in _VARIABLE.findall(root[1]):
        colors[name] = _USE.sub(lambda use: colors[use[1]], value.strip())
    # Double quotes would end the attribute in which it stands.
    return Palette(colors=colors, font_family=font[1].strip().replace('"', "'"))
