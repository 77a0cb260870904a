"""Layout of a bucket of tensors whose parts belong to single members, as TensorFlow's collectives carry it.

A bucket crosses as a matrix with a row for each member: its parts of all tensors, one behind the other, each
padded to the tensor's longest part; behind them its whole tensors, padded together.
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
    def is_whole(self) -> bool:
        return len(self.sizes) == 1

    @property
    def outer(self) -> int:
        return math.prod(self.dims[: self.axis])

    @property
    def inner(self) -> int:
        return math.prod(self.dims[self.axis + 1 :])

    @property
    def layers(self) -> "tuple[Layer, ...]":
        """Consecutive parts, each of a member after the previous one's; a single layer if sorted by rank."""
        if all(map(operator.lt, self.owners, self.owners[1:])):
            return (Layer(start=0, sizes=self.sizes, owners=self.owners),)
        firsts = [k for k, owner in enumerate(self.owners) if k == 0 or owner <= self.owners[k - 1]]
        ends = [*firsts[1:], len(self.owners)]
        return tuple(
            Layer(start=sum(self.sizes[:k]), sizes=self.sizes[k:end], owners=self.owners[k:end])
            for k, end in zip(firsts, ends, strict=True)
        )

    def dims_of(self, length: int) -> Dims:
        """Shape of a range of this length along the axis."""
        return (*self.dims[: self.axis], length, *self.dims[self.axis + 1 :]) if self.dims else ()


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
class Layer:
    """Consecutive parts of a tensor, at most one for each member; `start` is the place of the first one."""

    start: int
    sizes: tuple[int, ...]
    owners: tuple[int, ...]

    @property
    def width(self) -> int:
        return max(self.sizes)

    @property
    def runs(self) -> list[Run]:
        runs: list[Run] = []
        start = self.start
        for size, owner in zip(self.sizes, self.owners, strict=True):
            last = runs[-1] if runs else None
            if last is not None and last.size == size and last.rank + last.count == owner:
                runs[-1] = Run(last.start, last.rank, last.count + 1, size)
            else:
                runs.append(Run(start, owner, 1, size))
            start += size
        return runs


def row_length(tensors: Sequence[ShardedTensor]) -> int:
    """Number of elements of each member's row."""
    parted = sum(sum(layer_widths(tensor)) for tensor in tensors if not tensor.is_whole)
    return parted + max(_whole_rows(tensors).values(), default=0)


def layer_widths(tensor: ShardedTensor) -> list[int]:
    """Number of elements that each layer of a tensor takes of a row."""
    return [tensor.outer * layer.width * tensor.inner for layer in tensor.layers]


def sums_wholes(tensors: Sequence[ShardedTensor], n: int) -> bool:
    """True if n members send fewer bytes by summing whole tensors than by padding rows to the longest."""
    rows = _whole_rows(tensors)
    return n * max(rows.values(), default=0) > 2 * sum(rows.values())


def _whole_rows(tensors: Sequence[ShardedTensor]) -> Counter[int]:
    """Member → number of elements of its whole tensors."""
    rows: Counter[int] = Counter()
    for tensor in tensors:
        if tensor.is_whole:
            rows[tensor.owners[0]] += math.prod(tensor.dims)
    return rows
