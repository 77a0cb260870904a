"""One line of a graph's text, read from left to right."""

import base64
import re
from collections.abc import Callable, Iterator
from typing import TypeVar

from strategies.errors import GraphError

Value = TypeVar("Value")

NAME = re.compile(r"[A-Za-z0-9_.<][A-Za-z0-9_.\\/<>\-]*")
TYPE = re.compile(r"[a-z]+[a-z0-9_]*")
_BASE64 = re.compile(r"[A-Za-z0-9+/=]*")


class Line:
    """One line, read from left to right."""

    def __init__(self, line: str, number: int) -> None:
        self._line, self._number, self._at = line, number, 0

    def error(self, wanted: str) -> GraphError:
        """What to raise where something else comes next."""
        rest = self._line[self._at :]
        return GraphError(f"line {self._number}: expected {wanted}, got {rest[:60]!r}")

    def sees(self, token: str) -> bool:
        """Whether a token comes next."""
        return self._line.startswith(token, self._at)

    def takes(self, token: str) -> bool:
        """Go past a token if it comes next."""
        if not self.sees(token):
            return False
        self._at += len(token)
        return True

    def skip(self, token: str) -> "Line":
        """Go past a token, which must come next."""
        if not self.takes(token):
            raise self.error(repr(token))
        return self

    def spaces(self) -> None:
        """Go past spaces, if there are any."""
        while self.takes(" "):
            pass

    def match(self, pattern: re.Pattern[str], wanted: str) -> str:
        """Take what matches a pattern, which must come next."""
        match = pattern.match(self._line, self._at)
        if match is None:
            raise self.error(wanted)
        self._at = match.end()
        return match.group()

    def maybe(self, pattern: re.Pattern[str]) -> str | None:
        """Take what matches a pattern if it comes next."""
        match = pattern.match(self._line, self._at)
        if match is None:
            return None
        self._at = match.end()
        return match.group()

    def items(self, closing: str, one: Callable[[], Value]) -> Iterator[Value]:
        """Items with a comma between them, up to the closing bracket."""
        first = True
        while not self.takes(closing):
            if not first:
                self.skip(", ")
            first = False
            yield one()

    def encoded(self) -> bytes:
        """Bytes that are written whole."""
        if not self.takes("base64:"):
            raise self.error("bytes in base64, not their digest (write the text with exact=True)")
        return base64.b64decode(self.match(_BASE64, "base64"))

    def end(self) -> None:
        """Nothing but spaces may be left."""
        self.spaces()
        if self._at != len(self._line):
            raise self.error("the end of the line")
