"""Parts of variables with owners, as each task has them."""

from planning import step_of, trainable

from strategies.plan.partitions import joined_for, joins_parts, shards_of
from strategies.plan.schema import Partition
from strategies.registry import make_plan
from strategies.topology import Topology


def node_in_parts(sizes, owners, groups=None):
    step = step_of(trainable("w", sum(sizes), 2))
    node = make_plan("all-reduce", {}, step, Topology(replicas_per_task=(1, 1), batch_size=4)).nodes[0]
    partition = Partition(axis=0, sizes=tuple(sizes), owners=tuple(owners), groups=groups)
    return node.model_copy(update={"partition": partition, "group": None})


def ranges(node, ranks):
    joined = joined_for(node, ranks)
    shards = shards_of(node, joined)
    return shards.range_sizes, shards.range_owners, shards.ranges


def test_a_task_has_its_own_parts_and_others_as_ranges():
    node = node_in_parts((1, 2, 3, 4, 5), (0, 1, 2, 3, 4))
    names = tuple(f"w/part_{k}" for k in range(3))
    assert ranges(node, [2]) == ((3, 3, 9), (0, 2, 3), names)
    assert ranges(node, [0]) == ((1, 14), (0, 1), names[:2])
    assert ranges(node, [1, 2]) == ((1, 2, 3, 9), (0, 1, 2, 3), (*names, "w/part_3"))


def test_a_task_without_a_part_has_one_range():
    node = node_in_parts((1, 2), (0, 0))
    assert ranges(node, [1]) == ((3,), (0,), ("w/part_0",))
    assert ranges(node, [0]) == ((1, 2), (0, 0), ("w/part_0", "w/part_1"))


def test_all_tasks_have_the_same_parts_behind_their_ranges():
    node = node_in_parts((1, 2, 3), (2, 0, 1))
    tensors = {shards_of(node, joined_for(node, [rank])).tensor for rank in range(4)}
    (tensor,) = tensors
    assert (tensor.dims, tensor.sizes, tensor.owners) == ((6, 2), (1, 2, 3), (2, 0, 1))


def test_each_replica_of_a_task_takes_the_values_of_its_own_parts():
    node = node_in_parts((1, 2, 3), (0, 1, 2))
    shards = shards_of(node, joined_for(node, [0, 1]))
    assert [shards.of(rank, "abc") for rank in range(3)] == [["a"], ["b"], ["c"]]


def test_parts_in_several_buckets_keep_all_parts_apart():
    whole, apart = node_in_parts((1, 2), (0, 1), (0, 0)), node_in_parts((1, 2), (0, 1), (0, 1))
    assert joins_parts([whole])
    assert not joins_parts([whole, apart])
    without_owners = apart.partition.model_copy(update={"owners": None})
    assert joins_parts([whole, apart.model_copy(update={"partition": without_owners})])
