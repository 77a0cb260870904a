"""Line that says what goes on now, redrawn in place; for a person who waits at a terminal."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from harness.terminal_text import plain


@dataclass(frozen=True, slots=True, kw_only=True)
class StatusLine:
    """Shown on standard error, and gone when the work is done.

    Args:
        live: whether a person watches a terminal; False shows nothing.
    """

    live: bool

    @contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """Say what is going on until the context ends; one at a time."""
        if not self.live:
            yield
            return
        with Console(file=sys.stderr, highlight=False).status(Text(plain(what))):
            yield


UNWATCHED = StatusLine(live=False)
"""Shows nothing."""
