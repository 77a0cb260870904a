"""Payload of computations on cores, by hand."""

import pytest
from planning import slot, step_of, trainable

from strategies.registry import make_plan
from strategies.topology import Topology

# 10 floats, so that four replicas have parts of 3, 12 bytes.
STEP = step_of(trainable("w", 10, apart_axes=(0,)), slot("w/m", "w", 10))


def payload(replicas: tuple[int, ...], step=STEP, **params):
    topology = Topology(replicas_per_task=replicas, batch_size=2 * sum(replicas))
    return make_plan("tpu-replicate", params, step, topology).payload_matrix


def test_whole_variables_are_summed_around_a_ring():
    # 2 · 3/4 · 40 bytes go from each replica to the next, which is another worker's once for each worker.
    assert payload((2, 2)) == ((0, 60), (60, 0))


def test_nothing_leaves_the_only_worker():
    assert payload((4,), reshard=True) == ((0,),)


def test_parts_are_scattered_to_their_owners_and_gathered_to_be_read():
    # Scattered: each of 2 replicas sends each of the 2 others its 12 bytes: 48. Gathered: w is read in each
    # of 2 steps, and after these w and its slot are put together, 3 · 12 bytes each: 36 + 72 / 2.
    assert payload((2, 2), reshard=True, steps_per_loop=2) == ((0, 48 + 72), (48 + 72, 0))


@pytest.mark.parametrize("own", [{"gradient_shared": True, "apart_axes": (0,)}, {"apart_axes": ()}])
def test_a_gradient_that_other_updates_or_other_elements_need_is_summed_whole(own):
    step = step_of(trainable("w", 10, **own), slot("w/m", "w", 10))
    assert payload((2, 2), step, reshard=True, steps_per_loop=2) == ((0, 60 + 72), (60 + 72, 0))


def test_it_must_be_apart_along_every_axis_that_has_parts():
    step = step_of(trainable("w", 5, 1, 2, apart_axes=(0,)), slot("w/m", "w", 5, 1, 2))
    assert payload((2, 2), step, reshard=True, steps_per_loop=2)[0][1] == 60 + 72


def test_past_eleven_replicas_sums_are_whole():
    # Parts of one float: 2 · 11/12 · 48 bytes around, and 11 · 4 to read, and twice that after one step.
    step = step_of(trainable("w", 12, apart_axes=(0,)), slot("w/m", "w", 12))
    assert payload((6, 6), step, reshard=True, steps_per_loop=1)[0][1] == 88 + 3 * 44


@pytest.mark.parametrize("shape", [(), (3,)])
def test_what_has_no_value_for_each_replica_stays_whole(shape):
    topology = Topology(replicas_per_task=(4,), batch_size=4)
    plan = make_plan("tpu-replicate", {"reshard": True}, step_of(trainable("w", *shape)), topology)
    assert [node.in_parts for node in plan.nodes] == [False]
