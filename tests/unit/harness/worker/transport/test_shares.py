"""Shares are the same on all workers, however each of them joins slices to blocks and vectors."""

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harness.worker.transport.shares import WorkerShares
from strategies.ir.train_graph import Block


@st.composite
def transfers(draw):
    """Number of workers, and tensors [outer, length, inner] with the size and task of each slice."""
    n = draw(st.integers(1, 4))
    slices = st.lists(st.tuples(st.integers(0, 3), st.integers(0, n - 1)), min_size=1, max_size=5)
    tensors = draw(st.lists(st.tuples(st.integers(1, 2), st.integers(1, 3), slices), min_size=1, max_size=3))
    lengths = [outer * inner * sum(size for size, _ in own) for outer, inner, own in tensors]
    values = np.split(np.arange(sum(lengths), dtype=np.float64), np.cumsum(lengths)[:-1])
    return n, [
        (value.reshape(outer, -1, inner) if value.size else np.empty((outer, 0, inner)), own)
        for value, (outer, inner, own) in zip(values, tensors, strict=True)
    ]


def in_blocks(draw, tensors):
    """Blocks of consecutive slices, and the vectors that hold them, as one worker may have both."""
    blocks, values, number = [], [], 0
    n_vectors = draw(st.integers(1, 2))
    for value, slices in tensors:
        first = start = 0
        for last in range(1, len(slices) + 1):
            if last < len(slices) and draw(st.booleans()):
                continue
            sizes, tasks = zip(*slices[first:last], strict=True)
            outer, _, inner = value.shape
            vector = draw(st.integers(0, n_vectors - 1))
            block = Block(outer=outer, inner=inner, sizes=sizes, tasks=tasks, first=number, vector=vector)
            blocks.append(block)
            values.append(value[:, start : start + sum(sizes)].ravel())
            first, start, number = last, start + sum(sizes), number + len(sizes)
    used = max(block.vector for block in blocks) + 1
    return blocks, [
        np.concatenate([np.empty(0), *(v for b, v in zip(blocks, values, strict=True) if b.vector == number)])
        for number in range(used)
    ]


def shares_of(n, tensors):
    """Slices of each worker one behind the other, in order."""
    shares = [[np.empty(0)] for _ in range(n)]
    for value, slices in tensors:
        stops = np.cumsum([size for size, _ in slices])
        for (size, task), stop in zip(slices, stops, strict=True):
            shares[task].append(value[:, stop - size : stop].ravel())
    return [np.concatenate(own) for own in shares]


@given(transfers(), st.data())
def test_every_worker_sends_the_same_shares(transfer, data):
    n, tensors = transfer
    blocks, vectors = in_blocks(data.draw, tensors)
    shares = WorkerShares(blocks, n)
    assert shares.vector_lengths == list(map(len, vectors))
    for share, expected in zip(
        shares.copied_from(vectors, np.empty(shares.n_copied)), shares_of(n, tensors), strict=True
    ):
        np.testing.assert_array_equal(share, expected)


@given(transfers(), st.data())
def test_a_gather_is_the_inverse_of_a_scatter(transfer, data):
    n, tensors = transfer
    blocks, vectors = in_blocks(data.draw, tensors)
    own, sent = data.draw(st.integers(0, n - 1)), shares_of(n, tensors)
    shares = WorkerShares(blocks, n, own)
    into, copies = [np.full(length, np.nan) for length in shares.vector_lengths], np.empty(shares.n_copied)
    for rank, place in enumerate(shares.places(into, copies)):
        if rank != own:
            place[...] = sent[rank]
    shares.copy_own(into, sent[own])
    shares.copy_into(into, copies)
    for vector, expected in zip(into, vectors, strict=True):
        np.testing.assert_array_equal(vector, expected)


def test_a_share_in_one_piece_is_not_copied():
    blocks = [Block(sizes=(2, 3), tasks=(0, 1)), Block(sizes=(4,), tasks=(1,), first=2)]
    vector = np.arange(9.0)
    shares = WorkerShares(blocks, 2)
    assert shares.n_copied == 0
    assert all(share.base is vector for share in shares.copied_from([vector], np.empty(0)))
    # Two slices of a later axis lie in pieces.
    block = Block(outer=2, sizes=(1, 2), tasks=(0, 1))
    assert WorkerShares([block], 2).n_copied == math.prod(block.shape)
