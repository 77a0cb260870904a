"""The way out of a misspelt name."""

from collections.abc import Iterable
from difflib import get_close_matches


def did_you_mean(received: str, known: Iterable[str]) -> str:
    """Return the end of an error line: the likely name, and all names there are."""
    names = sorted(known)
    if not names:
        return "; there are none"
    close = get_close_matches(received, names, n=1, cutoff=0.6)
    guess = f"; did you mean {close[0]!r}?" if close else ";"
    return f"{guess} known: {', '.join(names)}"
