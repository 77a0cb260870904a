"""Which strategy to take, in words, for each goal that a reader may have."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Goal = Literal["fastest", "cheapest", "network"]
GOALS: tuple[Goal, ...] = ("fastest", "cheapest", "network")
VerdictKind = Literal["clear", "together", "no-interval", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Which strategy serves one goal best, in a sentence.

    `strategies` are those that the repeats cannot tell apart, the best figure first; `certain` where they
    show that one is best.
    """

    goal: Goal
    text: str
    strategies: tuple[str, ...]
    certain: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Advice:
    """Which strategy to take, in words, with what the claim rests on.

    `answers` holds one for each goal that figures are known for; the headline is that of `goal`.
    """

    kind: VerdictKind
    headline: str
    details: tuple[str, ...]
    leaders: tuple[str, ...]
    goal: Goal = "fastest"
    answers: tuple[Answer, ...] = ()
