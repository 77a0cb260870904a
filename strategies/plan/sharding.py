"""Layout of a bucket of tensors whose parts belong to single members, as TensorFlow's collectives carry it.

A bucket crosses as a matrix with a row for each member. A tensor in columns has one part per member, padded
to its longest part. The parts of all other tensors are packed: those of each member are one behind the other,
and padded once to the longest share.
"""

import math
import operator
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

Dims = tuple[int, ...]
MOST_MEMBERS_OF_A_TASK = 10
"""Members of one task with which TensorFlow's all-to-all is right.

It names a message by the numbers of its sender and receiver, one written behind the other: if a task has
members 1 and 11, "1" and "15" read like "11" and "5".
"""
_MOST_PADDING = 2
"""Largest ratio of padded to real elements."""


@dataclass(frozen=True, slots=True)
class Run:
    """Parts of equal length, of consecutive members.

    Attributes:
        start: place of the first part along the axis. rank: its member. count: number of parts.
    """

    start: int
    rank: int
    count: int
    size: int

    @property
    def stop(self) -> int:
        return self.start + self.count * self.size


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedTensor:
    """Static description of a tensor in consecutive parts along an axis.

    Attributes:
        sizes: length of each part. owners: rank of the member to which it belongs.
    """

    dims: Dims
    axis: int
    sizes: tuple[int, ...]
    owners: tuple[int, ...]

    @property
    def outer(self) -> int:
        return math.prod(self.dims[: self.axis])

    @property
    def length(self) -> int:
        """Length of all parts together."""
        return sum(self.sizes)

    @property
    def inner(self) -> int:
        return math.prod(self.dims[self.axis + 1 :])

    @property
    def n_elements(self) -> int:
        return math.prod(self.dims)

    @property
    def width(self) -> int:
        """Number of elements of the longest part."""
        return self.outer * max(self.sizes) * self.inner

    @property
    def runs(self) -> list[Run]:
        runs: list[Run] = []
        start = 0
        for size, owner in zip(self.sizes, self.owners, strict=True):
            last = runs[-1] if runs else None
            if last is not None and last.size == size and last.rank + last.count == owner:
                runs[-1] = Run(last.start, last.rank, last.count + 1, size)
            else:
                runs.append(Run(start, owner, 1, size))
            start += size
        return runs

    def is_in_columns(self, n: int) -> bool:
        """True if rows of n members have a column for its parts.

        Its members have one part at most, in the order of their ranks, and padding at most doubles it.
        """
        is_even = n * self.width <= _MOST_PADDING * self.n_elements
        return len(self.sizes) > 1 and is_even and all(map(operator.lt, self.owners, self.owners[1:]))

    def dims_of(self, length: int) -> Dims:
        """Shape of a range of this length along the axis."""
        return (*self.dims[: self.axis], length, *self.dims[self.axis + 1 :]) if self.dims else ()


def in_row_order(tensors: Sequence[ShardedTensor], n: int) -> list[int]:
    """Places of tensors in the order in which rows of n members have them: columns before packed parts."""
    return sorted(range(len(tensors)), key=lambda place: not tensors[place].is_in_columns(n))


def exchange_of(tensors: Sequence[ShardedTensor], n: int) -> tuple[list[int], list[int]]:
    """Split the tensors of a reduce-scatter.

    Packed parts cross in rows, unless padding more than doubles them: then all members sum these tensors,
    which sends fewer bytes.

    Returns:
        Places of the tensors that cross in rows, in the rows' order, and places of those that are summed.
    """
    places = in_row_order(tensors, n)
    packed = [place for place in places if not tensors[place].is_in_columns(n)]
    shares = _packed_shares([tensors[place] for place in packed])
    if n * max(shares.values(), default=0) <= _MOST_PADDING * shares.total():
        return places, []
    return places[: len(places) - len(packed)], packed


def row_length(tensors: Sequence[ShardedTensor], n: int) -> int:
    """Number of elements of each of n members' rows."""
    widths = sum(tensor.width for tensor in tensors if tensor.is_in_columns(n))
    packed = _packed_shares([tensor for tensor in tensors if not tensor.is_in_columns(n)])
    return widths + max(packed.values(), default=0)


def _packed_shares(tensors: Sequence[ShardedTensor]) -> Counter[int]:
    """Member → number of elements of its packed parts."""
    shares: Counter[int] = Counter()
    for tensor in tensors:
        for size, owner in zip(tensor.sizes, tensor.owners, strict=True):
            shares[owner] += tensor.outer * size * tensor.inner
    return shares
