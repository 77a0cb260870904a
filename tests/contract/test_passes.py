"""What holds for every pass, on a dense, a sparse, and a BatchNorm and dropout capture."""

import pytest

pytestmark = pytest.mark.tensorflow
tf = pytest.importorskip("tensorflow")

from strategies.ir.text import to_text
from strategies.ir.traversal import prune
from strategies.ir.verify import verify
from strategies.passes.collectives.all_reduce import DenseAllReduce, SparseAllGather
from strategies.passes.collectives.batch_norm import SyncStatistics
from strategies.passes.collectives.leader import HandOn, Lead
from strategies.passes.collectives.local_sgd import AverageVariables
from strategies.passes.collectives.ring_all_reduce import TransportAllReduce
from strategies.passes.parameter_server.synchronous import ParameterServerSync
from strategies.passes.pass_order import passes_of
from strategies.passes.replicate.combine_local import CombineLocal
from strategies.planning.plan import topology_of
from strategies.tf_bridge.graphdef import graphdef_from_graph

CAPTURES = [("digits-mlp", "adamw-clipped"), ("word-lm", "adagrad"), ("digits-cnn", "momentum")]
# Strategy, task, and which of its passes: every pass that there is, on both sides of a parameter server.
ROWS = [
    ("all-reduce", 0, "hoist-reads"),
    ("all-reduce", 1, "replicate"),
    ("all-reduce", 1, "sync-statistics"),
    ("all-reduce", 1, "combine-local"),
    ("all-reduce", 1, "sparse-all-gather"),
    ("all-reduce", 1, "transport-all-reduce"),
    ("all-reduce", 1, "dense-all-reduce"),
    ("hierarchical-all-reduce", 0, "lead"),
    ("hierarchical-all-reduce", 1, "combine-local"),
    ("hierarchical-all-reduce", 1, "hand-on"),
    ("local-sgd", 0, "average-variables"),
    ("local-sgd", 1, "combine-local"),
    ("sharded-update", 0, "shard-updates"),
    ("sharded-update", 1, "dense-reduce-scatter"),
    ("sharded-update", 1, "transport-all-reduce"),
    ("ps", 1, "replicate"),
    ("ps", 1, "combine-local"),
    ("ps", 0, "sync-ps"),
    ("ps", 1, "sync-ps"),
    ("ps", 1, "hand-over"),
    ("ps-load-balancing", 0, "place"),
    ("ps-load-balancing", 1, "place"),
]
BY_COLLECTIVES = ("dense-all-reduce", "dense-reduce-scatter")


PARAMS = {
    # Over another transport there is nothing left for the collectives.
    **{name: {"transport": "ring"} for name in BY_COLLECTIVES},
    "sync-statistics": {"sync_batch_norm": True},
}


@pytest.fixture(params=CAPTURES, ids="-".join)
def case(cases, request):
    return cases.of(*request.param)


def text_of(step):
    """All of a step as text."""
    return to_text(step.graph) + repr([getattr(step, f) for f in step.__slots__ if f != "graph"])


@pytest.mark.parametrize(("strategy", "task", "name"), ROWS, ids=str)
def test_a_pass_is_pure_deterministic_and_leaves_a_sound_graph(case, strategy, task, name):
    plan = case.plan(strategy, (2, 2), **PARAMS.get(name, {}))
    topology = topology_of(plan)
    step = case.step
    if name == "sync-statistics" and not step.statistics:
        assert name not in {each.name for each in passes_of(plan, task)}
        return
    for each in passes_of(plan, task):
        if each.name == name:
            break
        step = each.apply(step, topology)
    before = text_of(step)
    first, second = each.apply(step, topology), each.apply(step, topology)
    assert text_of(step) == before
    assert text_of(first) == text_of(second)
    if first is not step:
        assert text_of(first) != before
    verify(first.graph)
    assert {*first.roots()} <= set(first.graph.by_name)
    verify(prune(first.graph, first.roots()))
    with tf.Graph().as_default():
        tf.compat.v1.import_graph_def(graphdef_from_graph(first.graph), name="")


def test_the_rows_name_every_pass(cases):
    case, normalised = cases.of("word-lm", "adagrad"), cases.of("digits-cnn", "momentum")
    named = {(strategy, name) for strategy, _, name in ROWS}
    plans = [
        case.plan("all-reduce", (2, 2)),
        normalised.plan("all-reduce", (2, 2), sync_batch_norm=True),
        case.plan("sharded-update", (2, 2), transport="ring"),
        *(case.plan(s, (2, 2)) for s in ("ps", "hierarchical-all-reduce", "local-sgd", "sharded-update")),
    ]
    planned = {(plan.strategy, each.name) for plan in plans for each in passes_of(plan, 0)}
    assert {name for _, name in named} == {name for _, name in planned}


def nothing_to_do(case):
    """Passes with no sparse gradient, one task, no weight or bucket, merged reads, devices everywhere."""
    dense = case("digits-mlp", "momentum")
    two = dense.plan("ps", (2,))
    topology = topology_of(two)
    hoist, replicate, combine, *_ = passes_of(two, 0)
    hoisted = hoist.apply(dense.step, topology)
    yield hoist, hoisted, topology
    combined = combine.apply(replicate.apply(hoisted, topology), topology)
    yield combine, combined, topology
    yield ParameterServerSync(task=0, destinations={}), combined, topology
    yield SparseAllGather(task=0), combined, topology
    sparse_only = topology_of(dense.plan("all-reduce", (1, 1)))
    yield DenseAllReduce(task=0, buckets=()), combined, sparse_only
    yield TransportAllReduce(task=0, buckets=()), combined, sparse_only
    yield CombineLocal(task=0), combined, topology
    yield SyncStatistics(task=0, layers=frozenset({"norm"})), replicate.apply(hoisted, topology), topology
    yield AverageVariables(task=0, period=2, variables=frozenset()), hoisted, topology
    shared = topology_of(dense.plan("hierarchical-all-reduce", (1, 1)))
    yield Lead(task=0), combined, shared
    handed = HandOn(task=0).apply(combined, topology)
    yield HandOn(task=0), handed, topology
    place = passes_of(two, 0)[-1]
    yield place, place.apply(combined, topology), topology


def test_the_same_object_comes_back_when_there_is_nothing_to_do(cases):
    for each, step, topology in nothing_to_do(cases.of):
        assert each.apply(step, topology) is step, each.name


def test_both_tasks_agree_on_accumulators_queues_and_collective_keys(case):
    """What tasks find each other by: shared names with their devices, and as many collectives."""
    meet = ("ConditionalAccumulator", "SparseConditionalAccumulator", "FIFOQueueV2")
    for strategy in ("ps-load-balancing", "all-reduce"):
        plan = case.plan(strategy, (2, 1))
        topology = topology_of(plan)
        found = []
        for task in range(2):
            step = case.step
            for each in passes_of(plan, task):
                step = each.apply(step, topology)
            nodes = prune(step.graph, step.roots()).nodes
            shared = {(n.attrs["shared_name"], n.op, n.device) for n in nodes if n.op in meet}
            members = [n for n in nodes if n.op.startswith("Collective")]
            found.append((shared, len(members) / len(topology.local_replicas(task)), step.transfers))
        assert found[0] == found[1]
        assert any(found[0])
