"""Lists of numbers in which numbers that follow a rule are one entry, in JSON and in text."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, TypeAlias

from pydantic import BeforeValidator, PlainSerializer

LONG = 16
"""Lists of up to so many numbers are written out."""
_LEAST_NUMBERS, _LEAST_TIMES = 4, 3
"""Fewest numbers, and fewest times, that are one entry."""
_MOST_VALUES = 2
"""Most numbers that are repeated together: a replica may own a longer and a shorter part of a variable."""
MOST_NUMBERS = 1 << 20
"""Most numbers of a list with repetitions."""


@dataclass(frozen=True, slots=True)
class Repeated:
    """Values that are repeated so many times, each time `step` more than the time before."""

    values: tuple[int, ...]
    times: int = 1
    step: int = 0

    @property
    def length(self) -> int:
        return self.times * len(self.values)

    def numbers(self) -> Iterator[int]:
        return (value + k * self.step for k in range(self.times) for value in self.values)

    def __str__(self) -> str:
        first, last = (_text(value + k * self.step for value in self.values) for k in (0, self.times - 1))
        if self.times == 1:
            return first
        by = "" if self.step == 1 else f" by {self.step}"
        return f"{first} to {last}{by}" if self.step else f"{self.times} x {first}"


def _text(values: Iterator[int]) -> str:
    first, *others = values
    return f"({', '.join(map(str, (first, *others)))})" if others else str(first)


# Cached: a variable's slots have the same numbers.
@lru_cache(maxsize=64)
def repetitions_of(numbers: tuple[int, ...]) -> tuple[Repeated, ...]:
    """Repetitions that together are these numbers; in a short list, each number is by itself."""
    if len(numbers) <= LONG:
        return tuple(Repeated((number,)) for number in numbers)
    repetitions: list[Repeated] = []
    start = 0
    while start < len(numbers):
        candidates = (_repeated(numbers, start, n) for n in range(1, _MOST_VALUES + 1))
        repeated = max(candidates, key=lambda repeated: (repeated.length, -len(repeated.values)))
        if repeated.length < _LEAST_NUMBERS or repeated.times < _LEAST_TIMES:
            repeated = Repeated(numbers[start : start + 1])
        repetitions.append(repeated)
        start += repeated.length
    return tuple(repetitions)


def _repeated(numbers: Sequence[int], start: int, n_values: int) -> Repeated:
    """Longest repetition that begins here, of so many values."""
    stop = start + n_values
    step = numbers[stop] - numbers[start] if stop < len(numbers) else 0
    while stop < len(numbers) and numbers[stop] - numbers[stop - n_values] == step:
        stop += 1
    return Repeated(tuple(numbers[start : start + n_values]), (stop - start) // n_values, step)


def in_words(numbers: tuple[int, ...]) -> str:
    """Text of a list, such as `0 to 4095` or `4096 x 1`."""
    return ", ".join(map(str, repetitions_of(numbers)))


def _to_json(numbers: tuple[int, ...]) -> list[int | dict[str, object]]:
    return [_entry(repeated) for repeated in repetitions_of(numbers)]


def _entry(repeated: Repeated) -> int | dict[str, object]:
    if repeated.length == 1:
        return repeated.values[0]
    step = {"step": repeated.step} if repeated.step else {}
    values = repeated.values[0] if len(repeated.values) == 1 else list(repeated.values)
    return {"repeat": values, "times": repeated.times, **step}


def _from_json(items: object) -> object:
    """List with its repetitions written out; other items stay, for the validation of numbers to refuse."""
    if not isinstance(items, list) or not any(isinstance(item, dict) for item in items):
        return items
    repetitions = [_repeated_in(item) for item in items]
    if sum(1 if repeated is None else repeated.length for repeated in repetitions) > MOST_NUMBERS:
        return items
    written_out: list[object] = []
    for item, repeated in zip(items, repetitions, strict=True):
        written_out += [item] if repeated is None else repeated.numbers()
    return written_out


def _repeated_in(item: object) -> Repeated | None:
    if not isinstance(item, Mapping) or not {"repeat", "times"} <= item.keys() <= {"repeat", "times", "step"}:
        return None
    repeat, times, step = item["repeat"], item["times"], item.get("step", 0)
    values = repeat if isinstance(repeat, list) else [repeat]
    if not values or any(type(n) is not int for n in (*values, times, step)) or times < 1:
        return None
    return Repeated(tuple(values), times, step)


Numbers: TypeAlias = Annotated[
    tuple[int, ...], BeforeValidator(_from_json), PlainSerializer(_to_json, when_used="json")
]
"""Numbers, with repetitions in JSON: `[{"repeat": 0, "times": 4096, "step": 1}]` is 0 to 4095."""
