"""Errors of strategies: one line with the subject, the rule, the received value and advice."""

import difflib
import re
from collections.abc import Iterable, Sequence

_MOST_NAMED = 3


class StrategyError(Exception):
    """Base of the errors that this package raises on purpose: the strategy does not support the step."""


class UnsupportedError(StrategyError):
    """A TensorFlow strategy or an edited plan that does not support this workload or cluster shape."""


class GraphError(StrategyError):
    """A graph breaks a rule of graphs: a bug in a pass; the message names the first such node."""


class CaptureError(StrategyError):
    """A train step that cannot be captured; the message names the variable or node and its requirement.

    Attributes:
        node: name of a node in the trace, used to find its line in the user's file; None if unknown.
    """

    def __init__(self, message: str, *, node: str | None = None) -> None:
        super().__init__(message)
        self.node = node


def suggestion(word: str, known: Iterable[str]) -> str:
    """Close match among known names, or a list of them.

    Args:
        word: unknown name.
    """
    names = list(known)
    close = [name for name in names if _folded(name) == _folded(word)]
    close = close or difflib.get_close_matches(word, names, n=1)
    close = close or [name for name in names if word in re.split("[-_]", name)]
    if len(close) == 1:
        return f"did you mean {close[0]!r}?"
    return f"known are {', '.join(names)}" if names else "none are known"


def _folded(name: str) -> str:
    return re.sub("[-_ ]", "", name).lower()


def first_few(items: Sequence[str]) -> str:
    """First three items and the number of the others, as text."""
    more = f" and {len(items) - _MOST_NAMED} more" if len(items) > _MOST_NAMED else ""
    return f"{', '.join(items[:_MOST_NAMED])}{more}"
