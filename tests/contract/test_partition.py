"""Partitioned variables: the same numbers as one device, whatever the optimizer, and mistakes are noticed."""

import re

import pytest

# Where a mistake leaves workers waiting for each other, the test must not wait long.
pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(240)]
tf = pytest.importorskip("tensorflow")

import keras
from cases import case_of_model
from layer_models import primes_and_ones
from matrix import PARTITIONED

from harness.verification.worker.in_process import programs_of
from strategies.errors import StrategyError
from strategies.numerics import parts
from strategies.passes.partition import parts as part_nodes
from strategies.passes.pass_order import passes_of
from strategies.plan.schema import Partition
from strategies.planner import topology_of
from strategies.user_strategies import read_plan


def cut_of(plan):
    return {node.variable: node.partition for node in plan.nodes if node.partition is not None}


@pytest.mark.parametrize("strategy", PARTITIONED)
@pytest.mark.parametrize("model", ["digits-mlp+momentum", "word-lm+rmsprop", "wide-mlp+adamw-clipped"])
def test_the_matrix_has_parts(cases, model, strategy):
    assert cut_of(cases.model(model).plan(strategy, (2, 1), **PARTITIONED[strategy]))


def in_single_slices(case, result, axis):
    """The plan, through a file, with parts of length 1 along an axis for all variables that may have them."""
    shapes = {v.name: v.shape for v in case.summary.variables}
    able = {v.name for v in case.summary.variables if axis in v.partitionable_axes}
    nodes = []
    for v, node in zip(case.summary.variables, result.nodes, strict=True):
        owner = v.slot_of or v.name
        if owner in able and v.shape == shapes[owner]:
            n = v.shape[axis]
            places = {
                "destinations": node.destination is not None and tuple(k % 2 for k in range(n)),
                "groups": node.group is not None and tuple(range(n)),
                "owners": node.owner is not None and tuple(k % 2 for k in range(n)),
            }
            cut = Partition(axis=axis, sizes=(1,) * n, **{k: place for k, place in places.items() if place})
            whole = {"destination": None, "group": None, "owner": None}
            nodes.append(node.model_copy(update={"partition": cut, **whole}))
        else:
            nodes.append(node)
    text = result.model_copy(update={"nodes": tuple(nodes)}).model_dump_json()
    topology = case.topology(result.replicas_per_task)
    return read_plan(text, name="edited", where="plan").plan(case.summary, topology)


@pytest.mark.parametrize(
    ("axis", "cut"), [(0, {"table", "matrices"}), (1, {"table", "matrices"}), (2, {"matrices", "batches"})]
)
@pytest.mark.parametrize("strategy", ["ps", "all-reduce", "hierarchical-all-reduce", "sharded-update"])
def test_tables_may_be_cut_along_any_axis_wherever_they_are_looked_up_in(cases, strategy, axis, cut):
    case = cases.model("tied-embeddings")
    plan = in_single_slices(case, case.plan(strategy, (2, 1)), axis)
    assert {*cut_of(plan)} & {"table", "matrices", "batches"} == cut
    verdict = case.check(plan)
    worst = max(verdict.variables, key=lambda v: v.update_error)
    assert verdict.equivalent, f"{worst.name} is off by {worst.update_error:.1e}"


def test_a_random_axis_reaches_columns_of_a_table(cases):
    plan = cases.model("tied-embeddings").plan("random-axis-partitioned-all-reduce", (2, 1), seed=3)
    assert cut_of(plan)["matrices"].axis == cut_of(plan)["batches"].axis == 2


K = keras.optimizers
MADE = {
    "amsgrad": lambda: K.Adam(0.1, amsgrad=True),
    "adamax": lambda: K.Adamax(0.1),
    "nadam": lambda: K.Nadam(0.1),
    "lion": lambda: K.Lion(0.1),
    "ftrl": lambda: K.Ftrl(0.1),
    "lamb": lambda: K.Lamb(0.1),
    "adadelta": lambda: K.Adadelta(0.1),
    "adagrad-from-zero": lambda: K.Adagrad(0.1, initial_accumulator_value=0.0, epsilon=1e-3),
    "rmsprop": lambda: K.RMSprop(0.1, momentum=0.9, centered=True),
    "nesterov": lambda: K.SGD(0.1, momentum=0.9, nesterov=True, clipnorm=0.5),
    "clipped": lambda: K.Adam(0.1, global_clipnorm=0.3),
    "ema": lambda: K.AdamW(0.1, weight_decay=0.1, use_ema=True),
}


def tables(tmp_path, optimizer):
    keras.backend.clear_session()
    return case_of_model(primes_and_ones(optimizer), tmp_path / "tables")


def test_a_variable_that_feeds_control_flow_stays_whole(cases):
    plan = cases.model("looked-up-in-a-loop").plan("partitioned-ps", (1, 1))
    assert set(cut_of(plan)) == {"w"}


@pytest.mark.parametrize("result", MADE)
def test_any_elementwise_or_row_local_optimizer(tmp_path, result):
    case = tables(tmp_path, MADE[result]())
    for strategy, replicas in (
        ("uneven-partitioned-ps", (2, 1)),
        ("random-axis-partitioned-all-reduce", (1, 1)),
    ):
        plan = case.plan(strategy, replicas)
        assert {"table", "kernel"} <= set(cut_of(plan))
        assert "one" not in cut_of(plan) or cut_of(plan)["one"].axis == 1
        verdict = case.check(plan)
        worst = max(verdict.variables, key=lambda v: v.update_error)
        assert verdict.equivalent, f"{worst.name} is off by {worst.update_error:.1e}"


def test_an_update_that_needs_the_whole_keeps_it_whole(tmp_path):
    case = tables(tmp_path, K.Adafactor(0.1))
    plan = case.plan("partitioned-ps", (1, 1))
    assert not cut_of(plan)
    (warning,) = plan.warnings
    assert re.search(r"'kernel' \(node '.+' \(\w+\): it is neither elementwise nor row-local\)", warning)
    assert warning.endswith("choose ps-load-balancing")
    edited = plan.model_copy(
        update={
            "nodes": tuple(
                n.model_copy(
                    update={
                        "partition": Partition(axis=0, sizes=(2, 2), destinations=(0, 1)),
                        "destination": None,
                    }
                )
                if n.shape == (4, 7)
                else n
                for n in plan.nodes
            )
        }
    )
    with pytest.raises(StrategyError, match=r"variable 'kernel'.*Mean.*neither elementwise.*keep it whole"):
        programs_of(case.step, edited)


# Mistakes, each of which the check must notice.


def swapped(whole, *, axis, sizes):
    return list(reversed(parts.split_parts(whole, axis=axis, sizes=sizes)))


def shifted_ids(rows, ids, *, starts):
    n = len(starts)
    pieces = parts.split_rows(rows, ids, starts=starts)
    return (*pieces[:n], *(tf.maximum(i - 1, 0) for i in pieces[n:]))


def unmerged(rows, ids, *, starts):
    """Every part gets only the first of the rows of an id."""
    n = len(starts)
    pieces = parts.split_rows(rows, ids, starts=starts)
    kept_rows = []
    for part_ids in pieces[n:]:
        unique, place = tf.unique(part_ids)
        kept_rows.append(tf.math.unsorted_segment_min(tf.range(tf.size(part_ids)), place, tf.size(unique)))
    return (
        *(tf.gather(r, k) for r, k in zip(pieces[:n], kept_rows, strict=True)),
        *(tf.gather(i, k) for i, k in zip(pieces[n:], kept_rows, strict=True)),
    )


def unstitched(ids, *tensors):
    n = len(tensors) // 2
    rows = tf.concat(list(tensors[n:]), 0)
    return tf.reshape(rows, tf.concat([tf.shape(ids), tf.shape(rows)[1:]], 0))


def first_only(*values, how):
    return values[0]


MISTAKES = {
    "swapped-shards": ("split_parts", swapped, "word-lm", "momentum"),
    "wrong-offset": ("split_rows", shifted_ids, "word-lm", "momentum"),
    "unmerged-ids": ("split_rows", unmerged, "word-lm", "adagrad"),
    "unordered-lookup": ("stitch_rows", unstitched, "word-lm", "momentum"),
    "joined-backwards": ("join_parts", lambda *p, axis: tf.concat(p[::-1], axis), "digits-mlp", "momentum"),
    "norm-of-one-part": ("total", first_only, "digits-mlp", "adamw-clipped"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_noticed(cases, monkeypatch, mistake):
    name, wrong, workload, optimizer = MISTAKES[mistake]
    case = cases.of(workload, optimizer)
    plan = case.plan("partitioned-ps", (2,), max_shards=2)
    sound = programs_of(case.step, plan)
    assert case.run(plan, sound).equivalent
    monkeypatch.setattr(part_nodes, name, wrong)
    programs = programs_of(case.step, plan)
    assert not case.run(plan, programs).equivalent


@pytest.mark.parametrize("strategy", ["partitioned-ps", "partitioned-all-reduce"])
def test_the_pass_is_pure_and_keeps_the_parts_of_the_update(cases, strategy):
    from strategies.ir.graph_rules import verify
    from strategies.ir.text import to_text

    case = cases.of("word-lm", "adamw-clipped")
    plan = case.plan(strategy, (1, 1))
    fuse, hoist, cut, *_ = passes_of(plan, 0)
    assert cut.name == "partition"
    step = hoist.apply(fuse.apply(case.step, topology_of(plan)), topology_of(plan))
    before = to_text(step.graph)
    first, second = (cut.apply(step, topology_of(plan)) for _ in range(2))
    assert to_text(step.graph) == before
    assert to_text(first.graph) == to_text(second.graph) != before
    verify(first.graph)
    assert {*first.roots()} <= set(first.graph.by_name)
    assert first.update_nodes() <= set(first.graph.by_name)
    owned = [n for r in first.regions for n in r.nodes]
    assert len(owned) == len(set(owned))
    assert set(owned).isdisjoint(first.shared_update)
