"""Line that says what goes on now, redrawn in place; for a person who waits at a terminal."""

import sys
from collections.abc import Callable, Iterator
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
        with self.changing() as say:
            say(what)
            yield

    @contextmanager
    def changing(self) -> Iterator[Callable[[str], None]]:
        """Say what is going on, as the context says it."""
        if not self.live:
            yield lambda _: None
            return
        with Console(file=sys.stderr, highlight=False).status("") as status:
            yield lambda what: status.update(Text(plain(what)))


UNWATCHED = StatusLine(live=False)
"""Shows nothing."""
