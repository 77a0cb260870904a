"""Shares of all workers in the tensors of one transfer: views where a share is in one piece, else copies."""

from collections.abc import Sequence
from dataclasses import dataclass

from harness.worker.transport.tcp_ring import Vector
from strategies.ir.train_graph import Block


@dataclass(frozen=True, slots=True)
class _Slice:
    """Range of a block's middle axis, and its place in the share of its worker."""

    block: int
    start: int
    stop: int
    at: int
    n_elements: int


class Shares:
    """Shares of a transfer's workers.

    A share that is one contiguous piece of memory is sent from, or received into, its tensor. Shares in
    several pieces are copied as a whole: a message for each piece would cost more.

    Attributes:
        lengths: number of elements of each worker's share.
        n_copied: number of elements of all shares that are copied.
    Args:
        n_workers: number of all workers; some may have no slice.
        own: rank of the worker whose share a gather does not receive; None for a scatter.
    """

    def __init__(self, blocks: Sequence[Block], n_workers: int, own: int | None = None) -> None:
        self._shapes = [block.shape for block in blocks]
        self._slices: list[list[_Slice]] = [[] for _ in range(n_workers)]
        self.lengths = [0] * n_workers
        for place, block in enumerate(blocks):
            start = 0
            for size, task in zip(block.sizes, block.tasks, strict=True):
                n = block.outer * size * block.inner
                if n:
                    self._slices[task].append(_Slice(place, start, start + size, self.lengths[task], n))
                self.lengths[task] += n
                start += size
        self._own = own
        self._starts: list[int | None] = []
        self.n_copied = 0
        for task in range(n_workers):
            is_direct = task == own or self._is_direct(self._slices[task])
            self._starts.append(None if is_direct else self.n_copied)
            self.n_copied += 0 if is_direct else self.lengths[task]

    def _is_direct(self, slices: Sequence[_Slice]) -> bool:
        return len(slices) == 0 or (len(slices) == 1 and self._is_contiguous(slices[0]))

    def _is_contiguous(self, piece: _Slice) -> bool:
        outer, length, _ = self._shapes[piece.block]
        return outer == 1 or piece.stop - piece.start == length

    def copied_from(self, tensors: Sequence[Vector], room: Vector) -> list[Vector]:
        """Shares of tensors, one vector for each worker.

        Args:
            room: [n_copied] of the tensors' type, for the shares that are copied.
        """
        for task, start in enumerate(self._starts):
            if start is not None:
                for piece in self._slices[task]:
                    at = start + piece.at
                    source = self._piece(tensors, piece)
                    room[at : at + piece.n_elements].reshape(source.shape)[...] = source
        return self.places(tensors, room)

    def places(self, tensors: Sequence[Vector | None], room: Vector) -> list[Vector]:
        """Destinations of all shares; those in `room` are still to be copied by `copy_into`."""
        places = []
        for task, start in enumerate(self._starts):
            if start is not None:
                places.append(room[start : start + self.lengths[task]])
            elif self._slices[task] and task != self._own:
                places.append(self._piece(tensors, self._slices[task][0]).reshape(-1))
            else:
                places.append(room[:0])
        return places

    def copy_into(self, tensors: Sequence[Vector | None], room: Vector) -> None:
        """Copy the received shares in `room` to their places."""
        for task, start in enumerate(self._starts):
            if start is not None:
                self._copy(tensors, task, room[start : start + self.lengths[task]])

    def copy_own(self, tensors: Sequence[Vector | None], share: Vector) -> None:
        """Copy this worker's own share to the tensors that arrive."""
        assert self._own is not None
        self._copy(tensors, self._own, share)

    def _copy(self, tensors: Sequence[Vector | None], task: int, share: Vector) -> None:
        for piece in self._slices[task]:
            if tensors[piece.block] is not None:
                place = self._piece(tensors, piece)
                place[...] = share[piece.at : piece.at + piece.n_elements].reshape(place.shape)

    def _piece(self, tensors: Sequence[Vector | None], piece: _Slice) -> Vector:
        tensor = tensors[piece.block]
        assert tensor is not None
        return tensor.reshape(self._shapes[piece.block])[:, piece.start : piece.stop]
