"""An answer that a person is given in lines."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from harness.cli import output
from harness.cli.answer import Answer


def answer_in_lines(lines: Sequence[str], *, document: object, exit_status: int) -> Answer:
    """An answer in lines for a person, and as a document for a program."""
    return Answer(document=document, show=partial(_show, tuple(lines)), exit_status=exit_status)


def _show(lines: Sequence[str]) -> None:
    for line in lines:
        output.say(line)
