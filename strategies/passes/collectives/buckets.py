"""Buckets: tensors of one type that are sent as one message, summed by all replicas or owned by one each."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from strategies.errors import StrategyError
from strategies.ir.graph import DType, Shape, element_bytes, n_elements
from strategies.ir.train_graph import Block, Boundary
from strategies.ir.traversal import at_level
from strategies.numerics.collectives import IN_ORDER
from strategies.passes.replicate.rewire import sync_prefix
from strategies.plan.compressors import payload_bytes
from strategies.plan.exchanges.collectives import LARGE_BYTES, MAX_PIECES, n_pieces_of
from strategies.plan.partitions import OwnedParts
from strategies.plan.schema import Compression
from strategies.plan.sharding import ShardedTensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Collective:
    """One bucket: boundaries of one type by name, and one key name per piece."""

    members: tuple[str, ...]
    key_names: tuple[str, ...]


def collectives(
    dense: Sequence[Boundary],
    buckets: Sequence[Sequence[str]],
    size_of: Callable[[Boundary], int] | None = None,
    hints: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Collective]:
    """Collectives of all buckets by name: one for the small tensors of a type, and one per large tensor.

    Args:
        size_of: function that returns a boundary's bytes in a collective; by default those of its tensor.
        hints: variable → implementation; a message that `IN_ORDER` would send piece by piece stays in one
            piece.
    """
    named: dict[str, Collective] = {}
    # Gradients of another level depend on an update, which waits for these.
    for level in sorted({b.level for b in dense}):
        named |= _of_level(level, [b for b in dense if b.level == level], buckets, size_of or _n_bytes, hints)
    return named


def _of_level(
    level: int,
    dense: Sequence[Boundary],
    buckets: Sequence[Sequence[str]],
    n_bytes: Callable[[Boundary], int],
    hints: Mapping[str, str],
) -> dict[str, Collective]:
    by_variable: dict[str, dict[str, Boundary]] = {}
    for b in dense:
        by_variable.setdefault(b.variable, {})[sync_prefix(b)] = b
    named: dict[str, Collective] = {}
    for i, bucket in enumerate(buckets):
        by_dtype: dict[str, list[Boundary]] = {}
        limit = 1 if any(hints.get(variable) == IN_ORDER for variable in bucket) else MAX_PIECES
        for variable in bucket:
            for b in by_variable.get(variable, {}).values():
                by_dtype.setdefault(b.dtype, []).append(b)
        for dtype, members in by_dtype.items():
            small = [b for b in members if n_bytes(b) < LARGE_BYTES]
            if small:
                named |= _collective(at_level(f"sync/bucket_{i}_{dtype}", level), small, n_bytes, limit)
            for b in members:
                if n_bytes(b) >= LARGE_BYTES:
                    named |= _collective(f"{sync_prefix(b)}/large", [b], n_bytes, limit)
    return named


def _collective(
    name: str, members: Sequence[Boundary], n_bytes: Callable[[Boundary], int], limit: int
) -> dict[str, Collective]:
    n_pieces = min(limit, n_pieces_of(sum(map(n_bytes, members))))
    collective = Collective(
        members=tuple(sync_prefix(b) for b in members),
        key_names=tuple(f"{name}/piece_{k}" for k in range(n_pieces)),
    )
    return {name: collective}


def _n_bytes(boundary: Boundary) -> int:
    return element_bytes(boundary.dtype) * n_elements(static_dims(boundary))


def static_dims(boundary: Boundary) -> tuple[int, ...]:
    """Static shape of the tensor that crosses a boundary.

    Raises:
        StrategyError: one of its lengths is unknown.
    """
    dims = boundary.shape.dims
    if dims is None or -1 in dims:
        raise StrategyError(
            f"variable {boundary.variable!r}: an all-reduced variable must have a static shape, got {dims}; "
            "declare its shape or use a parameter server"
        )
    return dims


def row_shape(boundary: Boundary) -> Shape:
    """Shape of the rows that cross a sparse gradient's boundary; their number is free.

    Raises:
        StrategyError: one of the variable's lengths is unknown.
    """
    return Shape((-1, *static_dims(boundary)[1:]))


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """Tensor to be sent, with the same name on all replicas, whose parts belong to single replicas.

    Attributes:
        level: level of the boundary that it crosses, or of the update that computed it.
    """

    name: str
    dtype: DType
    shards: OwnedParts
    level: int = 1


def range_blocks(members: Sequence[Member], task_of: Mapping[int, int]) -> list[list[Block]]:
    """Blocks of each member's ranges, for the workers' own transport.

    Args:
        members: all members of a transfer. task_of: rank → task.
    """
    numbers = itertools.count()
    blocks: list[list[Block]] = []
    for shards in (member.shards for member in members):
        tensor = shards.tensor
        parts = zip(tensor.sizes, (task_of[owner] for owner in tensor.owners), numbers, strict=False)
        blocks.append([])
        for length in shards.range_sizes:
            in_range = [next(parts)]
            while sum(size for size, _, _ in in_range) < length:
                in_range.append(next(parts))
            sizes, tasks, (first, *_) = zip(*in_range, strict=True)
            block = Block(outer=tensor.outer, inner=tensor.inner, sizes=sizes, tasks=tasks, first=first)
            blocks[-1].append(block)
    return blocks


def in_vectors(blocks: Sequence[Block], dtype: DType) -> list[list[int]]:
    """Places of the blocks in each vector: all small ones are in one, and each large one is alone.

    Blocks of one task are neighbours, so that its share need not be copied.
    """
    small: list[int] = []
    large: list[list[int]] = []
    for place in sorted(range(len(blocks)), key=lambda place: min(blocks[place].tasks)):
        if n_elements(blocks[place].shape) * element_bytes(dtype) < LARGE_BYTES:
            small.append(place)
        else:
            large.append([place])
    return [small, *large] if small else large


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedGradient:
    """Gradient of a variable with owners, in the ranges that a replica's task has of it.

    Attributes:
        name: name of the gradient, the same on all replicas.
        boundaries: the replica's boundary of each range.
    """

    name: str
    shards: OwnedParts
    boundaries: tuple[Boundary, ...]

    @property
    def member(self) -> Member:
        """Member for a dense gradient."""
        first = self.boundaries[0]
        static_dims(first)  # refuses unknown lengths
        return Member(name=self.name, dtype=first.dtype, shards=self.shards, level=first.level)


def owned_gradients(
    shards: Iterable[OwnedParts], boundaries: Iterable[Boundary], rank: int
) -> list[OwnedGradient]:
    """Gradients of variables with owners that cross these boundaries on one replica."""
    by_variable: dict[str, list[Boundary]] = {}
    for b in boundaries:
        if b.rank == rank:
            by_variable.setdefault(b.variable, []).append(b)
    return [
        OwnedGradient(name=f"{owned.variable}/gradient_{k}", shards=owned, boundaries=crossing)
        for owned in shards
        for k, crossing in enumerate(zip(*(by_variable.get(name, ()) for name in owned.ranges), strict=True))
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardBucket:
    """Tensors of one type and level that are sent together."""

    name: str
    dtype: DType
    level: int
    members: tuple[Member, ...]

    @property
    def tensors(self) -> tuple[ShardedTensor, ...]:
        return tuple(member.shards.tensor for member in self.members)

    def key_names(self, kind: str, n_elements: int) -> tuple[str, ...]:
        """Names of the keys of a message with so many elements, one for each of its pieces.

        Args:
            kind: name of the message within the bucket's exchange.
        """
        n_pieces = n_pieces_of(n_elements * element_bytes(self.dtype)) if n_elements else 0
        return tuple(f"{self.name}/{kind}_{k}" for k in range(n_pieces))


def shard_buckets(
    path: str, members: Iterable[Member], buckets: Sequence[Sequence[str]]
) -> tuple[ShardBucket, ...]:
    """Sort members into buckets by type, in the order of the buckets.

    Args:
        path: prefix of the exchanges' names.
        buckets: names of the variables in each bucket. A task may have several of them for one member.
    """
    by_variable: dict[tuple[str, int], list[Member]] = {}
    for member in members:  # the same on every replica
        by_variable.setdefault((member.shards.ranges[0], member.level), []).append(member)
    typed_buckets = []
    for level, (i, bucket) in itertools.product(sorted({k for _, k in by_variable}), enumerate(buckets)):
        by_dtype: dict[DType, list[Member]] = {}
        for variable in bucket:
            for member in by_variable.get((variable, level), ()):
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


def encoded_buckets(
    gradients: Sequence[Boundary],
    compressions: Mapping[str, Compression],
    buckets: Sequence[Sequence[str]],
) -> Iterator[tuple[str, Collective, Compression]]:
    """Buckets of gradients with the same encoding: small payloads, however large their gradients are.

    Args:
        compressions: variable → compressor of its gradient.
        buckets: names of the variables of each bucket.
    """
    for compression in dict.fromkeys(compressions[b.variable] for b in gradients):
        alike = [b for b in gradients if compressions[b.variable] == compression]

        def n_bytes(b: Boundary, compression: Compression = compression) -> int:
            return payload_bytes(static_dims(b), b.dtype, compression)

        for bucket, collective in collectives(alike, buckets, n_bytes).items():
            yield f"{bucket}/{_label(compression)}", collective, compression


def _label(compression: Compression) -> str:
    """Compressor and its options; buckets may differ in these alone."""
    return "-".join(str(value) for _, value in compression if value is not None)
