"""Each replica updates its share of the variables: the same numbers as one device."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import pytest

# Where a mistake leaves workers waiting for each other, the test must not wait long.
pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(240)]
tf = pytest.importorskip("tensorflow")

import numpy as np
from matrix import OPTIMIZERS, TOPOLOGIES, WORKLOADS
from transfers import shares_of

from harness.verification.worker.in_process import InProcessCluster, programs_of
from harness.worker.transport.tcp_ring import Ring
from strategies.errors import StrategyError
from strategies.ir.traversal import ancestors
from strategies.numerics import shards
from strategies.passes.collectives import all_gather, all_reduce, gather_variables, members, shard_updates
from strategies.passes.pass_order import passes_of
from strategies.plan.schema import Plan
from strategies.planner import topology_of

# Tiny models have parts, and several buckets.
PARAMS = {"min_bytes": 1, "bucket_bytes": 600}


def pytest_generate_tests(metafunc):
    if "combination" not in metafunc.fixturenames:
        return
    chosen = list(itertools.product(WORKLOADS, OPTIMIZERS, TOPOLOGIES))
    if not metafunc.config.getoption("--all-cases"):
        # A workload with dense gradients and one with rows, with every optimizer, the topologies in turn.
        pairs = itertools.product(("digits-mlp", "word-lm"), OPTIMIZERS)
        chosen = [
            (*pair, replicas) for pair, replicas in zip(pairs, itertools.cycle(TOPOLOGIES), strict=False)
        ]
    metafunc.parametrize("combination", chosen, ids=lambda c: "-".join((*c[:2], "+".join(map(str, c[2])))))


def test_equivalent(cases, combination):
    workload, optimizer, replicas = combination
    case = cases.of(workload, optimizer)
    plan = case.plan("sharded-update", replicas, **PARAMS)
    assert plan.strategy_class == "exact"
    verdict = case.check(plan)
    worst = max(verdict.variables, key=lambda v: v.update_error)
    assert verdict.equivalent, f"{worst.name} is off by {worst.update_error:.1e}"
    assert verdict.tolerance < 1e-9


@pytest.mark.parametrize(
    ("workload", "optimizer", "replicas"),
    [
        ("digits-cnn", "adam", (1, 1)),
        ("digits-mlp", "adamw-clipped", (1, 1, 1)),
        ("word-lm", "rmsprop", (2, 1)),
        ("wide-mlp", "momentum", (1, 2)),
    ],
)
def test_equivalent_by_tensorflows_collectives(cases, workload, optimizer, replicas):
    case = cases.of(workload, optimizer)
    plan = case.plan("sharded-update", replicas, **PARAMS, transport="ring")
    assert case.check(plan).equivalent


def test_slots_are_seen_once_and_variables_on_every_replica(cases):
    case = cases.of("word-lm", "adam")
    plan = case.plan("sharded-update", (2, 1), min_bytes=1)
    with InProcessCluster(programs_of(case.step, plan), case.initial) as cluster:
        copies = set(cluster.read())
    for v in case.step.variables:
        ranks = {rank for name, rank in copies if name == v.name}
        assert ranks == ({None} if v.slot_of else {0, 1, 2}), v.name


def test_owners_alone_keep_what_is_gathered(cases):
    case = cases.of("word-lm", "adam")
    plan = case.plan("fully-sharded", (2, 1), min_bytes=1)
    gathered = {node.variable for node in plan.nodes if node.gathered}
    assert gathered == {v.name for v in case.step.variables if v.kind == "trainable"}
    with InProcessCluster(programs_of(case.step, plan), case.initial) as cluster:
        copies = set(cluster.read())
    assert {rank for name, rank in copies if name in gathered} == {None}


@pytest.mark.parametrize("transport", ["ring", "tcp"])
@pytest.mark.parametrize(
    ("workload", "optimizer", "replicas"),
    [("digits-cnn", "adam", (1, 1)), ("word-lm", "adamw-clipped", (2, 1))],
)
def test_gathered_variables_are_equivalent(cases, workload, optimizer, replicas, transport):
    case = cases.of(workload, optimizer)
    plan = case.plan("fully-sharded", replicas, **PARAMS, transport=transport)
    assert case.check(plan).equivalent


def with_owners(plan: Plan, *owners: int) -> Plan:
    """The plan with these owners of the parts of each variable."""

    def edited(node):
        n = 0 if node.partition is None or node.partition.owners is None else len(node.partition.sizes)
        changes = {"owners": tuple(owners[k % len(owners)] for k in range(n))}
        return node.model_copy(update={"partition": node.partition.model_copy(update=changes)}) if n else node

    return plan.model_copy(update={"nodes": tuple(map(edited, plan.nodes))})


@pytest.mark.parametrize("transport", ["ring", "tcp"])
@pytest.mark.parametrize("strategy", ["sharded-update", "fully-sharded"])
@pytest.mark.parametrize(
    ("replicas", "owners"),
    # A worker without a part has all of them as one range. Two parts of three have padded rows.
    [((1, 1), (0, 0)), ((1, 1, 1), (2, 0, 1))],
)
def test_parts_may_belong_to_any_replicas(cases, replicas, owners, strategy, transport):
    case = cases.of("word-lm", "momentum")
    plan = with_owners(case.plan(strategy, replicas, **PARAMS, transport=transport), *owners)
    assert any(node.sparse and node.partition is not None for node in plan.nodes)
    assert case.check(plan).equivalent


def contiguous(case, plan) -> list[tuple[int, ...]]:
    """Shares of what all tasks get in one piece, their own share with it."""
    of_task = [
        [
            shares_of(t)
            for t in program.step.transfers
            if t.kind == "gather" and len(t.blocks) == 1 and t.blocks[0].vector is not None
        ]
        for program in programs_of(case.step, plan)
    ]
    assert all(shares == of_task[0] for shares in of_task)
    return of_task[0]


@pytest.mark.parametrize(
    ("replicas", "shares"),
    [
        # Kernels of 64 x 12, 12 x 12 and 12 x 10, and their biases.
        ((1, 1), {(32 * 12,) * 2, (6,) * 2, (6 * 12,) * 2, (6 * 10,) * 2, (5,) * 2}),
        # Three divides no 64, so that the first kernel is cut along its other axis, nor 10.
        ((1, 1, 1), {(64 * 4,) * 3, (4,) * 3, (4 * 12,) * 3, (4 * 10,) * 3, (4, 3, 3)}),
        ((2, 1), {(64 * 8, 64 * 4), (8, 4), (8 * 12, 4 * 12), (8 * 10, 4 * 10), (7, 3)}),
    ],
)
def test_parts_that_a_step_only_joins_come_in_one_piece(cases, replicas, shares):
    case = cases.of("digits-mlp", "momentum")
    plan = case.plan("fully-sharded", replicas, min_bytes=1, bucket_bytes=1)
    assert set(contiguous(case, plan)) == shares
    assert case.check(plan).equivalent


def test_parts_that_a_step_does_not_only_join_come_one_by_one(cases):
    case = cases.model("tied-embeddings")
    plan = case.plan("fully-sharded", (1, 1), min_bytes=1, bucket_bytes=1)
    assert [n for n in plan.nodes if n.gathered and n.partition is not None and n.partition.axis == 0]
    assert not contiguous(case, plan)
    assert case.check(plan).equivalent


def test_variables_that_the_step_itself_joins_come_in_one_piece(cases):
    case = cases.model("stacked")
    plan = case.plan("fully-sharded", (1, 1))
    rows = {node.variable: node.shape[0] for node in plan.nodes if node.gathered}
    assert sorted(rows.values()) == [1, 2]
    assert len(contiguous(case, plan)) == 1
    assert case.check(plan).equivalent


def test_a_turn_of_micro_batches_joins_no_parts_before_it_begins(cases):
    case = cases.of("digits-mlp", "momentum")
    plan = case.plan("fully-sharded", (1, 1), min_bytes=1, bucket_bytes=1, accumulate=2)
    assert contiguous(case, plan)
    step = case.step
    for rewrite in passes_of(plan, 0):
        step = rewrite.apply(step, topology_of(plan))
    wholes = {
        node.name: node
        for node in step.graph.nodes
        if node.op == "Identity" and node.inputs[0].startswith("sync/variables/")
    }
    second = [node for name, node in wholes.items() if name.startswith("micro_batch_1/")]
    assert 2 * len(second) == len(wholes) > 0
    done = {n.name for n in step.graph.nodes if n.name.endswith("/done")}
    for node in second:
        assert done & ancestors(step.graph, [node.name])
    assert case.check(plan).equivalent


def test_wholes_that_come_as_zeros_are_noticed(cases, monkeypatch):
    case = cases.of("digits-mlp", "momentum")
    plan = case.plan("fully-sharded", (1, 1), min_bytes=1, bucket_bytes=1)
    sound = gather_variables._whole_nodes

    def zeros(*arguments):
        nodes = sound(*arguments)
        return {k: replace(n, op="ZerosLike") if n.op == "Identity" else n for k, n in nodes.items()}

    monkeypatch.setattr(gather_variables, "_whole_nodes", zeros)
    assert not case.check(plan).equivalent


@pytest.mark.parametrize("strategy", ["sharded-update", "fully-sharded"])
@pytest.mark.parametrize("replicas", [(1, 1), (2, 1), (1, 1, 1)])
def test_variables_without_elements_hold_nobody_up(cases, strategy, replicas):
    case = cases.model("with-empty")
    assert case.check(case.plan(strategy, replicas, min_bytes=1, bucket_bytes=1)).equivalent


def collective_keys(graph_def: bytes) -> list[tuple[str, int, int]]:
    """Device, key of the group and key of the instance of each collective that is in a graph."""
    graph = tf.compat.v1.GraphDef.FromString(graph_def)
    nodes = {node.name: node for node in graph.node}

    def value(name: str) -> int:
        return int(tf.make_ndarray(nodes[name].attr["value"].tensor))

    # Of every collective: input, group size, group key, instance key.
    results = [node for node in graph.node if node.op.startswith("Collective")]
    return [(node.device, value(node.input[2]), value(node.input[3])) for node in results]


def test_gathers_before_forward_share_no_key_with_those_of_updates(cases, monkeypatch):
    # All names collide, so that keys are told apart by what makes them and not by chance.
    monkeypatch.setattr(members, "zlib", SimpleNamespace(crc32=lambda data: 7))
    case = cases.of("digits-mlp", "adam")
    plan = case.plan("fully-sharded", (2, 1), **PARAMS, transport="ring")
    whole_names = [node.variable for node in plan.nodes if node.gathered][::2]
    nodes = [
        n.model_copy(update={"gathered": n.gathered and n.variable not in whole_names}) for n in plan.nodes
    ]
    plan = plan.model_copy(update={"nodes": tuple(nodes)})
    for program in programs_of(case.step, plan):
        used = collective_keys(program.graph_def)
        names = str(tf.compat.v1.GraphDef.FromString(program.graph_def))
        assert "sync/variables" in names
        assert "sync/gather" in names
        assert len(set(used)) == len(used)


def test_one_replica_s_step_stays_as_it_was_captured(cases):
    plan = cases.of("digits-mlp", "adam").plan("fully-sharded", (1,), fused_update=False)
    assert passes_of(plan, 0) == ()


def edited(plan: Plan, **changes) -> Plan:
    nodes = tuple(n.model_copy(update=changes) for n in plan.nodes)
    return plan.model_copy(update={"nodes": nodes})


def test_a_norm_of_gradients_that_only_their_owners_have_is_refused(cases):
    case = cases.of("digits-mlp", "adamw-clipped")
    plan = case.plan("sharded-update", (1, 1))
    assert all(node.whole_gradient for node in plan.nodes if node.synchronizer == "all-reduce")
    says = r"variable 'digits_mlp/\S+': .* which needs its gradient; use `whole_gradient: true` in the plan"
    with pytest.raises(StrategyError, match=says):
        programs_of(case.step, edited(plan, whole_gradient=False))


# Mistakes, each of which the check must notice.


def backwards(exchange):
    """Shares are taken for those of other members."""

    def mistaken(*values, order, **rest):
        return exchange(*values, order=order[::-1], **rest)

    return mistaken


def left_out(*values, **rest):
    """Mutation: half of each sum is lost."""
    sums, done = shards.reduce_scatter(*values, **rest)
    return [own / 2 for own in sums], done


SOUND_SCATTER = Ring.scatter
SOUND_REGION = shard_updates._region


def not_taken(region, result_names, removed):
    """New values arrive, and nobody takes them."""
    region_without = SOUND_REGION(region, result_names, removed)
    return (
        replace(region_without, targets=())
        if set(region_without.targets) & set(result_names.values())
        else region_without
    )


def own_alone(ring, shares, total, factor):
    np.multiply(shares[ring._rank], factor, out=total)


def anothers_share(ring, shares, total, factor):
    """Mutation: a neighbour's share arrives here as well."""
    SOUND_SCATTER(ring, shares, total, factor)
    total[: len(shares[ring._rank - 1])] = shares[ring._rank - 1][: len(total)]


def nothing_comes(ring, share, places, meanwhile):
    meanwhile()
    for place in places:
        place.fill(0)


SOUND_VALUES = gather_variables.with_values


def zeros(graph, copies, prior, values, wholes):
    """Values of other replicas come as zeros, whatever they are."""
    arrived = {*values.values(), *(node.inputs[0] for node in wholes.values() if node.op == "Identity")}
    for node in SOUND_VALUES(graph, copies, prior, values, wholes):
        if node.op == "Identity" and node.inputs[:1] and node.inputs[0] in arrived:
            yield replace(node, op="ZerosLike")
        else:
            yield node


MISTAKES_IN_GATHERED = {"dropped-values": (gather_variables, "with_values", zeros)}
MISTAKES = {
    "swapped-shards-of-sums": (all_reduce, "reduce_scatter", backwards(shards.reduce_scatter)),
    "swapped-shards-of-values": (all_gather, "all_gather", backwards(shards.all_gather)),
    "dropped-sync": (all_reduce, "reduce_scatter", left_out),
    "dropped-gather": (shard_updates, "_region", not_taken),
    "dropped-sync-in-ring": (Ring, "scatter", own_alone),
    "another's-share-in-ring": (Ring, "scatter", anothers_share),
    "dropped-gather-in-ring": (Ring, "gather", nothing_comes),
}


@pytest.mark.parametrize(
    ("strategy", "mistake"),
    [
        *(("sharded-update", mistake) for mistake in MISTAKES),
        *(("fully-sharded", mistake) for mistake in MISTAKES if mistake != "dropped-gather"),
        ("fully-sharded", "dropped-values"),
    ],
)
def test_mistakes_are_noticed(cases, monkeypatch, strategy, mistake):
    module, name, wrong = {**MISTAKES, **MISTAKES_IN_GATHERED}[mistake]
    case = cases.of("digits-mlp", "momentum")
    plan = case.plan(strategy, (1, 1), **PARAMS, transport="tcp" if module is Ring else "ring")
    assert case.check(plan).equivalent
    monkeypatch.setattr(module, name, wrong)
    assert not case.check(plan).equivalent
