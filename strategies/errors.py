"""Errors of strategies: one line that names the thing, the rule, what was received and the way out."""

import difflib
from collections.abc import Iterable, Sequence

_MOST_NAMED = 3


class StrategyError(Exception):
    """Base of every error that this package raises on purpose.

    From what rewrites a step it is a refusal: the strategy is not for that step. A `GraphError` is none.
    """


class UnsupportedError(StrategyError):
    """A strategy of TensorFlow's own, or an edited plan, that is not for this workload or shape."""


class GraphError(StrategyError):
    """A graph breaks a rule of graphs; the message names the first node or function that does.

    Of a graph that passes made it is a mistake of theirs.
    """


class CaptureError(StrategyError):
    """A train step that cannot be captured; the message names the variable or node and what it would need.

    Attributes:
        node: of the trace, whose line in the user's file the message should end with.
    """

    def __init__(self, message: str, *, node: str | None = None) -> None:
        super().__init__(message)
        self.node = node


def suggestion(word: str, known: Iterable[str]) -> str:
    """Say which known name was probably meant, or which names there are.

    Args:
        word: what was received. known: the names that would have been accepted.
    """
    names = list(known)
    close = difflib.get_close_matches(word, names, n=1)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"known are {', '.join(names)}" if names else "none are known"


def first_few(items: Sequence[str]) -> str:
    """The first three items, and how many more there are, as text."""
    more = f" and {len(items) - _MOST_NAMED} more" if len(items) > _MOST_NAMED else ""
    return f"{', '.join(items[:_MOST_NAMED])}{more}"
