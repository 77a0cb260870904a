"""Binary search for the first bad one of a row of commits, some of which tell nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

Finding = Literal["good", "bad", "untold"]


class OutOfTimeError(Exception):
    """There is no time to look at one more commit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Narrowed:
    """How far the first bad one was narrowed down.

    Args:
        last_good, first_known_bad: indices of the nearest two that were looked at.
        is_cut_short: whether time was up before there was nothing left to look at.
    """

    last_good: int
    first_known_bad: int
    is_cut_short: bool = False

    @property
    def suspects(self) -> range:
        """Indices of those of which one is the first bad one."""
        return range(self.last_good + 1, self.first_known_bad + 1)


def narrowed(n_commits: int, look: Callable[[int], Finding]) -> Narrowed:
    """Find the first bad one between a good one and a bad one, by as few looks as can be.

    Args:
        n_commits: in a row, of which the first is good and the last is bad.
        look: what one of those between is; those untold are passed over. It may raise `OutOfTimeError`.
    """
    good, bad = 0, n_commits - 1
    untold: set[int] = set()
    while left := [index for index in range(good + 1, bad) if index not in untold]:
        index = _middle(left, good, bad)
        try:
            finding = look(index)
        except OutOfTimeError:
            return Narrowed(last_good=good, first_known_bad=bad, is_cut_short=True)
        if finding == "good":
            good = index
        elif finding == "bad":
            bad = index
        else:
            untold.add(index)
    return Narrowed(last_good=good, first_known_bad=bad)


def _middle(left: Sequence[int], good: int, bad: int) -> int:
    """Of those left, the one nearest to halfway."""
    return min(left, key=lambda index: abs(2 * index - good - bad))
