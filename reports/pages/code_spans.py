"""Text with code between backticks, taken apart for media that set code in type of its own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_CODE = re.compile(r"`([^`]+)`")


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A part of a text, without the backticks of code; not escaped yet."""

    text: str
    is_code: bool


def code_spans(text: str) -> tuple[Span, ...]:
    """Take a text apart; a backtick without another stays as it is."""
    return tuple(_spans(text))


def _spans(text: str) -> Iterator[Span]:
    # With a group, splitting gives what is between matches and what is in them in turn.
    for index, part in enumerate(_CODE.split(text)):
        if part:
            yield Span(text=part, is_code=index % 2 == 1)
