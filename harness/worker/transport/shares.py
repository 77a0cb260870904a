"""Shares of all workers in the vectors of one transfer: views where a share is in one piece, else copies."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from harness.worker.transport.tcp_ring import Vector
from strategies.ir.train_graph import Block


@dataclass(frozen=True, slots=True)
class _Piece:
    """Elements of a vector: a range of it, or slices of the block [outer, length, inner] that is there.

    Attributes:
        start: place of the first element of the range, or of the block.
        shape: shape of the block; None for a range.
        slices: start and stop of the slices along the middle axis of the block.
    """

    vector: int
    start: int
    n_elements: int
    shape: tuple[int, int, int] | None = None
    slices: tuple[int, int] = (0, 0)

    def view(self, vectors: Sequence[Vector]) -> Vector:
        vector = vectors[self.vector]
        if self.shape is None:
            return vector[self.start : self.start + self.n_elements]
        block = vector[self.start : self.start + math.prod(self.shape)].reshape(self.shape)
        return block[:, slice(*self.slices)]

    def continues_in(self, other: "_Piece") -> bool:
        """True if both are ranges and the other one follows."""
        is_next = (other.vector, other.start) == (self.vector, self.start + self.n_elements)
        return is_next and self.shape is None and other.shape is None


class WorkerShares:
    """Shares of a transfer's workers.

    A share that is one range of a vector is sent from it, or received into it. Other shares are copied as a
    whole: a message for each piece would cost more.

    Attributes:
        lengths: number of elements of each worker's share.
        vector_lengths: number of elements of each vector.
        n_copied: number of elements of all shares that are copied.
    Args:
        n_workers: number of all workers; some may have no slice.
        own: rank of the worker whose share a gather does not receive; None for a scatter.
    """

    def __init__(self, blocks: Sequence[Block], n_workers: int, own: int | None = None) -> None:
        slices: list[list[tuple[int, int, _Piece | None]]] = [[] for _ in range(n_workers)]
        self.vector_lengths = [0] * (1 + max((b.vector for b in blocks if b.vector is not None), default=-1))
        for block in blocks:
            for number, task, n, piece in self._slices(block):
                slices[task].append((number, n, piece))
            if block.vector is not None:
                self.vector_lengths[block.vector] += math.prod(block.shape)
        for of_task in slices:
            of_task.sort(key=lambda item: item[0])
        self.lengths = [sum(n for _, n, _ in of_task) for of_task in slices]
        self._own_slices = [] if own is None else [(n, piece) for _, n, piece in slices[own]]
        self._pieces = [
            _merged(piece for _, _, piece in of_task if piece is not None) if task != own else []
            for task, of_task in enumerate(slices)
        ]
        self._starts: list[int | None] = []
        self.n_copied = 0
        for pieces, length in zip(self._pieces, self.lengths, strict=True):
            is_copied = len(pieces) > 1 or (len(pieces) == 1 and pieces[0].shape is not None)
            self._starts.append(self.n_copied if is_copied else None)
            self.n_copied += length if is_copied else 0

    def _slices(self, block: Block) -> Iterator[tuple[int, int, int, _Piece | None]]:
        """Number, task, number of elements and place of each slice that has any elements."""
        start = 0
        for number, (size, task) in enumerate(zip(block.sizes, block.tasks, strict=True), block.first):
            n = block.outer * size * block.inner
            if n:
                yield number, task, n, self._piece(block, start, start + size)
            start += size

    def _piece(self, block: Block, start: int, stop: int) -> _Piece | None:
        if block.vector is None:
            return None
        outer, length, inner = block.shape
        first, n = self.vector_lengths[block.vector], outer * (stop - start) * inner
        if outer == 1 or stop - start == length:
            return _Piece(block.vector, first + start * inner, n)
        return _Piece(block.vector, first, n, block.shape, (start, stop))

    def copied_from(self, vectors: Sequence[Vector], copies: Vector) -> list[Vector]:
        """Shares of vectors, one for each worker.

        Args:
            copies: [n_copied] of the vectors' type, memory for the shares that are copied.
        """
        shares = self.places(vectors, copies)
        for pieces, start, share in zip(self._pieces, self._starts, shares, strict=True):
            if start is not None:
                for place, values in _pairs(vectors, pieces, share):
                    values[...] = place
        return shares

    def places(self, vectors: Sequence[Vector], copies: Vector) -> list[Vector]:
        """Destinations of all shares; those in `copies` are still to be copied by `copy_into`."""
        return [
            copies[start : start + length]
            if start is not None
            else pieces[0].view(vectors)
            if pieces
            else copies[:0]
            for pieces, start, length in zip(self._pieces, self._starts, self.lengths, strict=True)
        ]

    def copy_into(self, vectors: Sequence[Vector], copies: Vector) -> None:
        """Copy the received shares to their places."""
        for pieces, start, length in zip(self._pieces, self._starts, self.lengths, strict=True):
            if start is not None:
                for place, values in _pairs(vectors, pieces, copies[start : start + length]):
                    place[...] = values

    def copy_own(self, vectors: Sequence[Vector], share: Vector) -> None:
        """Copy this worker's own share to the vectors that arrive."""
        start = 0
        for n, piece in self._own_slices:
            if piece is not None:
                ((place, values),) = _pairs(vectors, [piece], share[start : start + n])
                place[...] = values
            start += n


def _pairs(
    vectors: Sequence[Vector], pieces: Iterable[_Piece], share: Vector
) -> Iterator[tuple[Vector, Vector]]:
    """Each piece's elements in vectors, and in a share that has the pieces one behind the other."""
    start = 0
    for piece in pieces:
        place = piece.view(vectors)
        yield place, share[start : start + piece.n_elements].reshape(place.shape)
        start += piece.n_elements


def _merged(pieces: Iterable[_Piece]) -> list[_Piece]:
    """Pieces with ranges that follow each other as one."""
    merged: list[_Piece] = []
    for piece in pieces:
        if merged and merged[-1].continues_in(piece):
            last = merged.pop()
            merged.append(replace(last, n_elements=last.n_elements + piece.n_elements))
        else:
            merged.append(piece)
    return merged
