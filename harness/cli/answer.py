"""Answer of every command: its JSON, how to show it to a person, and the exit status."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from harness.errors import EXIT_OK


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """The answer of one command.

    Args:
        document: printed with --json; mappings, sequences and scalars.
        show: prints the same for a person.
    """

    document: object
    show: Callable[[], None]
    exit_status: int = EXIT_OK
