"""Cuts of a variable into parts along one axis."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """Consecutive ranges of these lengths along an axis."""

    axis: int
    sizes: tuple[int, ...]

    @property
    def n(self) -> int:
        """Number of parts."""
        return len(self.sizes)

    @property
    def starts(self) -> tuple[int, ...]:
        """First index of each part."""
        return tuple(accumulate(self.sizes[:-1], initial=0))

    def shape(self, whole: Sequence[int], index: int) -> tuple[int, ...]:
        """The shape of a part."""
        return (*whole[: self.axis], self.sizes[index], *whole[self.axis + 1 :])


def part_name(variable: str, index: int) -> str:
    """What a part of a variable is called: the variable stays what its author knows."""
    return f"{variable}/part_{index}"
