"""Buckets that replicas exchange when each owns a share: tensors of one type, each owned."""

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from strategies.ir.assembly.levels import at_level
from strategies.ir.graph import DType
from strategies.ir.sizes import element_bytes, n_elements
from strategies.passes.collectives.all_reduce import MAX_PIECES, PIECE_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A tensor that travels, named alike on all replicas.

    Attributes:
        owner: rank of the replica that updates the variable.
        level: of the boundary that it crosses, or of the update that made it.
    """

    name: str
    variable: str
    dtype: DType
    dims: tuple[int, ...]
    owner: int
    level: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardBucket:
    """Tensors of one type and level that travel together."""

    name: str
    dtype: DType
    level: int
    members: tuple[Member, ...]

    @property
    def owners(self) -> tuple[int, ...]:
        """The owner of each member."""
        return tuple(member.owner for member in self.members)

    def by_task(self, task_of: Mapping[int, int], n_tasks: int) -> tuple[tuple[Member, ...], ...]:
        """The members that replicas of each task own.

        Args:
            task_of: rank → task.
        """
        shares: list[list[Member]] = [[] for _ in range(n_tasks)]
        for member in self.members:
            shares[task_of[member.owner]].append(member)
        return tuple(map(tuple, shares))

    @property
    def key_names(self) -> tuple[str, ...]:
        """A name for the key of each piece of a share."""
        shares: dict[int, int] = {}
        for member in self.members:
            shares[member.owner] = shares.get(member.owner, 0) + n_elements(member.dims)
        n_bytes = max(shares.values()) * element_bytes(self.dtype)
        n_pieces = min(MAX_PIECES, max(1, n_bytes // PIECE_BYTES))
        return tuple(f"{self.name}/piece_{k}" for k in range(n_pieces))


def shard_buckets(
    path: str, members: Iterable[Member], buckets: Sequence[Sequence[str]]
) -> tuple[ShardBucket, ...]:
    """The members by bucket and type, in the order of the buckets.

    Args:
        path: what the names of the exchanges start with.
        buckets: names of the variables of each bucket.
    """
    by_variable: dict[tuple[str, int], dict[str, Member]] = {}
    for member in members:  # the same on every replica
        by_variable.setdefault((member.variable, member.level), {}).setdefault(member.name, member)
    typed_buckets = []
    for level, (i, bucket) in itertools.product(sorted({k for _, k in by_variable}), enumerate(buckets)):
        by_dtype: dict[DType, list[Member]] = {}
        for variable in bucket:
            for member in by_variable.get((variable, level), {}).values():
                by_dtype.setdefault(member.dtype, []).append(member)
        typed_buckets += [
            ShardBucket(
                name=at_level(f"{path}/bucket_{i}_{dtype}", level),
                dtype=dtype,
                level=level,
                members=tuple(chosen),
            )
            for dtype, chosen in by_dtype.items()
        ]
    return tuple(typed_buckets)
