"""Statistics of the whole batch: a model with batch normalisation computes what it does on one device.

Where nothing is drawn at random, the measure is the plain captured step on the whole batch, moving averages
included. By default every strategy meets one topology; with `--all-cases` every strategy meets all.
"""

import itertools
from dataclasses import replace

import pytest

# Where a mistake leaves workers waiting for each other, the test must not wait long.
pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(240)]
tf = pytest.importorskip("tensorflow")

from matrix import EXACT, PARTITIONED, TOPOLOGIES
from models import NORMALISED, NORMALISED_SUM, PARTLY, SYNCHRONIZED
from test_mutations import after, broken, noticed, without

from harness.verification.reference import Outcome
from harness.verification.verification import Divergence
from harness.verification.worker.check import make_reference
from harness.verification.worker.divergence import first_divergence
from harness.verification.worker.in_process import InProcessCluster, programs_of
from strategies.errors import UnsupportedError
from strategies.ir.graph import element_bytes, n_elements
from strategies.numerics.combine import weighted_sum
from strategies.passes.collectives import batch_norm
from strategies.passes.pass_order import passes_of
from strategies.planner import topology_of

CNN = "digits-cnn+momentum"
STRATEGIES: dict[str, dict[str, object]] = {
    **{name: {} for name in EXACT},
    **PARTITIONED,
    "sharded-update": {"min_bytes": 1},
    "ps": {"local_proxy_variable": True},
}


def pytest_generate_tests(metafunc):
    if "combination" in metafunc.fixturenames:
        every = metafunc.config.getoption("--all-cases")
        pairs = itertools.product(STRATEGIES, TOPOLOGIES)
        chosen = list(pairs) if every else list(zip(STRATEGIES, itertools.cycle(TOPOLOGIES), strict=False))
        metafunc.parametrize("combination", chosen, ids=lambda c: f"{c[0]}-{'+'.join(map(str, c[1]))}")


def synced(case, strategy, replicas):
    plan = case.plan(strategy, replicas, sync_batch_norm=True, **STRATEGIES[strategy])
    assert plan.strategy_class == "exact"
    return plan


def judged_by_the_whole_batch(case, plan, programs):
    with InProcessCluster(programs, case.initial) as cluster:
        for batch in case.batches:
            cluster.step(batch)
        return case.reference((1,)).judge(Outcome(values=cluster.read()))


def test_the_step_is_that_of_one_device_on_the_whole_batch(cases, combination):
    case = cases.model(NORMALISED).for_row(*combination)
    plan = synced(case, *combination)
    verdict = judged_by_the_whole_batch(case, plan, programs_of(case.step, plan))
    worst = max(verdict.variables, key=lambda v: v.update_error)
    assert verdict.equivalent, f"{worst.name} is off by {worst.update_error:.1e}"
    assert verdict.tolerance < 1e-9
    assert {v.kind for v in verdict.variables} == {"trainable", "slot", "state"}


@pytest.mark.parametrize(
    ("strategy", "replicas"), [("all-reduce", (2, 1)), ("ps", (1, 2)), ("tpu-replicate", (2, 1))]
)
def test_so_it_is_where_the_loss_is_a_sum(cases, strategy, replicas):
    case = cases.model(NORMALISED_SUM).for_row(strategy, replicas)
    plan = synced(case, strategy, replicas)
    assert judged_by_the_whole_batch(case, plan, programs_of(case.step, plan)).equivalent
    assert case.check(plan).equivalent


def test_so_it_is_where_layers_ask_for_it_themselves(cases, combination):
    strategy, replicas = combination
    case, unasked = (cases.model(model).for_row(strategy, replicas) for model in (SYNCHRONIZED, NORMALISED))
    plan = case.plan(strategy, replicas, **STRATEGIES[strategy])
    verdict = judged_by_the_whole_batch(case, plan, programs_of(case.step, plan))
    assert verdict.equivalent
    assert verdict.tolerance < 1e-9
    requested = unasked.plan(strategy, replicas, sync_batch_norm=True, **STRATEGIES[strategy])
    assert plan.statistics == requested.statistics
    assert plan.traffic == requested.traffic
    # Asked for twice, it is done once.
    assert synced(case, strategy, replicas).nodes == plan.nodes


class TestWhereOneLayerAsksForIt:
    @pytest.fixture
    def case(self, cases):
        return cases.model(PARTLY)

    @pytest.mark.parametrize(
        ("strategy", "replicas"),
        [("all-reduce", (2, 1)), ("ps", (1, 1)), ("partitioned-ps", (2, 2)), ("tpu-replicate", (2,))],
    )
    def test_the_other_keeps_its_shard_s(self, case, strategy, replicas):
        case = case.for_row(strategy, replicas)
        plan = case.plan(strategy, replicas)
        assert [s.layer for s in plan.statistics] == ["shared"]
        assert case.check(plan).equivalent
        assert not judged_by_the_whole_batch(case, plan, programs_of(case.step, plan)).equivalent

    def test_the_knob_is_for_both(self, case):
        plan = synced(case, "all-reduce", (1, 1))
        assert [s.layer for s in plan.statistics] == ["sequential/of_images", "shared"]
        assert judged_by_the_whole_batch(case, plan, programs_of(case.step, plan)).equivalent

    @pytest.mark.parametrize("strategy", ["all-reduce", "ps"])
    def test_without_its_collectives_it_is_noticed(self, case, strategy):
        plan = case.plan(strategy, (1, 1))
        assert noticed(case, plan, broken(case, plan, without("sync-statistics")))

    def test_a_worker_that_is_left_out_is_noticed(self, case, monkeypatch):
        plan = case.plan("ps", (1, 1))
        monkeypatch.setattr(batch_norm, "keyed_all_reduce", alone)
        verdict = case.check(plan)
        assert not verdict.equivalent
        divergence = first_divergence(case.step, case.initial, plan, case.batches[0], verdict)
        assert divergence == Divergence(pass_name="sync-statistics", variable="shared")

    @pytest.mark.parametrize(
        ("strategy", "params"),
        [("ps", {"sync": False}), ("ps", {"staleness": 1}), ("local-sgd", {}), ("none", {})],
    )
    def test_where_nobody_waits_a_note_says_that_it_keeps_its_shard_s_too(self, case, strategy, params):
        plan = case.plan(strategy, (1, 1), **params)
        assert plan.statistics == ()
        (note,) = (note for note in plan.notes if "synchronized=True" in note)
        assert note.endswith(": shared")
        assert "sync-statistics" not in {rewrite.name for rewrite in passes_of(plan, 0)}

    def test_micro_batches_are_refused_with_it(self, case):
        with pytest.raises(UnsupportedError) as raised:
            case.plan("all-reduce", (1, 1), accumulate=2)
        assert str(raised.value) == (
            "strategy 'all-reduce': layer 'shared': BatchNormalization(synchronized=True) needs all examples "
            "at once, got accumulate=2; drop accumulate, or synchronized=True"
        )


def test_with_statistics_of_shards_it_is_not(cases):
    case = cases.model(NORMALISED)
    plan = case.plan("all-reduce", (2, 1))
    assert not judged_by_the_whole_batch(case, plan, programs_of(case.step, plan)).equivalent


def test_so_is_the_reference(cases):
    case = cases.model(NORMALISED)
    joint = case.reference((2, 1), global_statistics=True)
    whole = case.reference((1,))
    assert whole.judge(Outcome(values=joint.values)).equivalent
    assert not whole.judge(Outcome(values=case.reference((2, 1)).values)).equivalent


@pytest.mark.parametrize(("strategy", "replicas"), [("all-reduce", (2, 1)), ("ps", (1, 1))])
def test_with_dropout_it_is_that_of_all_shards_together(cases, strategy, replicas):
    case = cases.model(CNN)
    verdict = case.check(synced(case, strategy, replicas))
    worst = max(verdict.variables, key=lambda v: v.update_error)
    assert verdict.equivalent, f"{worst.name} is off by {worst.update_error:.1e}"
    assert verdict.tolerance < 1e-9


def test_a_smaller_last_batch(cases):
    full = cases.model(NORMALISED)
    case = replace(full, batches=[full.batches[0], [part[:5] for part in full.batches[1]]], _references={})
    plan = synced(case, "all-reduce", (2, 1))
    last = programs_of(case.step, plan.model_copy(update={"batch_size": 5}))
    whole = make_reference(case.step, case.initial, case.topology((1,)), case.batches)
    with InProcessCluster(programs_of(case.step, plan), case.initial) as cluster:
        cluster.take_up(last)
        for batch in case.batches:
            cluster.step(batch)
        assert whole.judge(Outcome(values=cluster.read())).equivalent


def test_replicas_have_equal_moving_averages(cases):
    case = cases.model(NORMALISED)
    plan = synced(case, "all-reduce", (2, 1))
    averages = {v.name for v in case.step.variables if v.kind == "state"}
    assert len(averages) == 4
    with InProcessCluster(programs_of(case.step, plan), case.initial) as cluster:
        cluster.step(case.batches[0])
        read = cluster.read()
    for name in averages:
        first, *others = (value for (variable, _), value in read.items() if variable == name)
        assert len(others) == 2
        assert all((other == first).all() for other in others)


class TestPayload:
    @pytest.mark.parametrize("replicas", [(1, 1), (2, 1), (1, 1, 1)])
    @pytest.mark.parametrize("strategy", ["all-reduce", "ps"])
    def test_is_that_of_a_ring_of_workers(self, cases, strategy, replicas):
        case = cases.model(CNN)
        plan = synced(case, strategy, replicas)
        plain = case.plan(strategy, replicas, **STRATEGIES[strategy])
        n, n_bytes = len(replicas), sum(statistic.bytes for statistic in plan.statistics)
        assert plain.statistics == ()
        added = plan.payload_bytes_per_step - plain.payload_bytes_per_step
        # Each entry of the matrix is rounded.
        assert abs(added - n * 2 * (n - 1) / n * n_bytes) <= n * n

    @pytest.mark.parametrize("replicas", [(1, 1), (2, 2)])
    def test_is_what_the_collectives_of_a_worker_sum(self, cases, replicas):
        """One round per level: mean, variance, and one for both gradients, of each layer."""
        case = cases.model(CNN)
        plan = synced(case, "ps", replicas)
        for program in programs_of(case.step, plan):
            graph = tf.Graph()
            with graph.as_default():
                tf.graph_util.import_graph_def(tf.compat.v1.GraphDef.FromString(program.graph_def), name="")
            sums = [op for op in graph.get_operations() if op.type == "CollectiveReduceV2"]
            assert len(sums) == 3 * len(plan.statistics) == 6
        step = case.step.statistics
        counted = sum(n_elements(s.shape.dims) * element_bytes("float") for s in step)
        assert counted == sum(statistic.bytes for statistic in plan.statistics)

    def test_one_worker_sends_nothing(self, cases):
        plan = synced(cases.model(CNN), "ps", (2,))
        assert plan.payload_bytes_per_step == 0
        assert len(plan.statistics) == 2


class TestMistakes:
    """Each is noticed, and the sound plan is equivalent in the same check."""

    @pytest.fixture
    def case(self, cases):
        return cases.model(NORMALISED)

    @pytest.mark.parametrize("strategy", ["all-reduce", "ps"])
    def test_no_statistics_are_synchronised(self, case, strategy):
        plan = synced(case, strategy, (1, 1))
        assert noticed(case, plan, broken(case, plan, without("sync-statistics")))

    @pytest.mark.parametrize("direction", ["forward", "backward"])
    def test_one_direction_is_left_out(self, case, direction):
        plan = synced(case, "all-reduce", (1, 1))

        def one_way(step, _):
            backward = tuple(s for s in step.statistics if "_gradient" in s.node)
            forward = tuple(s for s in step.statistics if s not in backward)
            assert len(forward) == len(backward)
            return replace(step, statistics=forward if direction == "forward" else backward)

        assert noticed(case, plan, broken(case, plan, after("replicate", one_way)))

    def test_shards_of_unequal_size_weigh_the_same(self, case, monkeypatch):
        plan = synced(case, "all-reduce", (2,))

        def equal(*values, weights):
            assert weights == (4 / 7, 3 / 7)
            return weighted_sum(*values, weights=(0.5, 0.5))

        monkeypatch.setattr(batch_norm, "weighted_sum", equal)
        assert not case.check(plan).equivalent

    def test_a_worker_is_left_out(self, case, monkeypatch):
        plan = synced(case, "ps", (1, 1))
        monkeypatch.setattr(batch_norm, "keyed_all_reduce", alone)
        verdict = case.check(plan)
        assert not verdict.equivalent
        divergence = first_divergence(case.step, case.initial, plan, case.batches[0], verdict)
        assert divergence == Divergence(pass_name="sync-statistics", variable="sequential/of_images")


def alone(*tensors, shapes, **_):
    """Twice what a worker has, in the place of what two have together."""
    return [value * 2.0 for value in tensors[: len(shapes)]]


def test_one_replica_keeps_the_captured_step(cases):
    plan = cases.model(NORMALISED).plan("all-reduce", (1,), sync_batch_norm=True, fused_update=False)
    assert plan.notes == ("one replica: all-reduce leaves the captured graph unchanged",)
    assert passes_of(plan, 0) == ()
    assert not topology_of(plan).global_statistics


def test_a_model_without_batch_normalisation_has_nothing_to_synchronise(cases):
    case = cases.of("digits-mlp", "momentum")
    plain, plan = case.plan("ps", (1, 1)), case.plan("ps", (1, 1), sync_batch_norm=True)
    assert plan.notes == ("sync_batch_norm: no layer normalises by its batch, nothing to synchronise",)
    assert plan.traffic == plain.traffic
