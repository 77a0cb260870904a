"""Buckets of tensors in parts: their blocks, vectors and keys."""

import pytest

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

from strategies.ir.graph import DType
from strategies.ir.train_graph import Block
from strategies.passes.collectives.buckets import Member, ShardBucket, in_vectors, range_blocks
from strategies.plan.partitions import OwnedParts
from strategies.plan.sharding import ShardedTensor

FLOAT = DType("float")
MIB = 1 << 20


def member(name, dims, axis, sizes, owners, range_sizes):
    tensor = ShardedTensor(dims=dims, axis=axis, sizes=sizes, owners=owners)
    ranges = tuple(f"{name}/part_{k}" for k in range(len(range_sizes)))
    parts = OwnedParts(variable=name, tensor=tensor, ranges=ranges, range_sizes=range_sizes)
    return Member(name=name, dtype=FLOAT, shards=parts)


def test_blocks_number_the_slices_of_all_members_whatever_their_ranges():
    task_of = {0: 0, 1: 0, 2: 1}
    members = [
        member("w", (2, 6, 5), 1, (1, 2, 3), (0, 1, 2), (1, 5)),
        member("b", (4,), 0, (4,), (2,), (4,)),
    ]
    assert range_blocks(members, task_of) == [
        [
            Block(outer=2, inner=5, sizes=(1,), tasks=(0,), first=0),
            Block(outer=2, inner=5, sizes=(2, 3), tasks=(0, 1), first=1),
        ],
        [Block(sizes=(4,), tasks=(1,), first=3)],
    ]


def test_small_blocks_are_one_vector_by_task_and_large_ones_are_alone():
    small = [Block(sizes=(3,), tasks=(task,)) for task in (2, 0, 1)]
    large = Block(sizes=(MIB // 4,), tasks=(0,))
    assert in_vectors([small[0], large, *small[1:]], FLOAT) == [[2, 3, 0], [1]]
    assert in_vectors([large], FLOAT) == [[0]]
    assert in_vectors([], FLOAT) == []


def test_a_message_has_a_key_for_each_piece_and_none_if_it_is_empty():
    bucket = ShardBucket(name="sync/b", dtype=FLOAT, level=1, members=())
    assert bucket.key_names("piece", 0) == ()
    assert bucket.key_names("piece", 1) == ("sync/b/piece_0",)
    assert bucket.key_names("sum", 3 * MIB) == ("sync/b/sum_0", "sync/b/sum_1", "sync/b/sum_2")
    assert len(bucket.key_names("sum", 100 * MIB)) == 4
