"""Flows of owners: a bucket of gradients to them and a bucket of values from them."""

from planning import slot, step_of, trainable

from strategies.plan.links import PairLinks, Ring
from strategies.planner import exchanges
from strategies.registry import make_plan
from strategies.topology import Topology


def owned(name, *shape, **fields):
    axes = tuple(range(len(shape)))
    return trainable(name, *shape, apart=True, apart_axes=axes, read_before_update=True, **fields)


STEP = step_of(owned("w", 40, 8), owned("b", 40, readiness=1), slot("m", "w", 40, 8))


def flows(strategy, **params):
    topology = Topology(replicas_per_task=(1,) * 4, batch_size=24)
    return exchanges(make_plan(strategy, {"min_bytes": 1, **params}, STEP, topology), STEP)


def test_a_bucket_is_scattered_and_its_new_values_are_gathered():
    values, gradients = flows("sharded-update")
    assert (values.op, values.values, values.variables) == ("gather", "new values", ("w", "b"))
    assert (gradients.op, gradients.values, gradients.variables) == ("scatter", "gradients", ("w", "b"))
    assert {flow.transport for flow in (values, gradients)} == {"tcp"}
    assert {flow.n_bytes for flow in (values, gradients)} == {4 * 40 * 9.0}


def test_fully_sharded_values_are_gathered_before_they_are_read():
    values, _ = flows("fully-sharded")
    assert values.values == "read values"


def test_tensorflow_scatters_between_pairs_and_gathers_around_a_ring():
    values, gradients = flows("sharded-update", transport="ring")
    assert isinstance(values.links, Ring)
    assert isinstance(gradients.links, PairLinks)
