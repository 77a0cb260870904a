"""Micro-batches: the numbers of the reference on all of them, one at a time, synchronised once."""

import itertools
from collections import Counter
from dataclasses import replace

import pytest

# Where a mistake leaves workers waiting for each other, the test must not wait long.
pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(240)]
tf = pytest.importorskip("tensorflow")

from covering import covering
from matrix import CORE_ROWS, EXACT, OPTIMIZERS, PARTITIONED, TOPOLOGIES, WORKLOADS
from model import BATCH_SIZE
from models import STATE
from test_mutations import after, broken, noticed, reweighted

from harness.verification.worker.in_process import programs_of
from strategies.ir.graph import producer
from strategies.ir.traversal import ancestors, descendants
from strategies.passes.pass_order import passes_of
from strategies.planner import topology_of

STRATEGIES: dict[str, dict[str, int]] = {
    **{name: {} for name in EXACT if name not in CORE_ROWS},
    **PARTITIONED,
    "sharded-update": {"min_bytes": 1},
}
FACTORS = {
    "workload": WORKLOADS,
    "optimizer": OPTIMIZERS,
    "strategy": tuple(STRATEGIES),
    # No micro-batch may be empty; seven examples make them uneven.
    "shape": [(r, k) for r in TOPOLOGIES for k in (2, 3) if sum(r) * k <= BATCH_SIZE],
}
CHOSEN = [
    ("digits-mlp", "adamw-clipped", "partitioned-all-reduce", ((2,), 3)),
    ("digits-mlp", "adamw-clipped", "hierarchical-all-reduce", ((2, 1), 2)),
    ("digits-cnn", "momentum", "all-reduce", ((2, 1), 2)),
    ("digits-cnn", "momentum", "ps", ((1, 1), 3)),
    ("word-lm", "adagrad", "all-reduce", ((1, 1), 3)),
    ("digits-cnn", "momentum", "sharded-update", ((1, 1), 2)),
    ("word-lm", "adagrad", "partitioned-ps", ((1, 1), 2)),
]


def pytest_generate_tests(metafunc):
    if "combination" in metafunc.fixturenames:
        every = metafunc.config.getoption("--all-cases")
        chosen = covering(FACTORS, list(itertools.combinations(FACTORS, 2))) if every else CHOSEN
        # Neighbours share a capture.
        chosen.sort(key=lambda choice: (WORKLOADS.index(choice[0]), OPTIMIZERS.index(choice[1])))
        ids = ["-".join((*c[:3], "+".join(map(str, c[3][0])), str(c[3][1]))) for c in chosen]
        metafunc.parametrize("combination", chosen, ids=ids)


def test_equivalent(cases, combination):
    workload, optimizer, strategy, (replicas, k) = combination
    case = cases.of(workload, optimizer)
    plan = case.plan(strategy, replicas, accumulate=k, **STRATEGIES[strategy])
    assert plan.strategy_class == "exact"
    verdict = case.check(plan)
    worst = max(verdict.variables, key=lambda v: v.update_error)
    assert verdict.equivalent, f"{worst.name} is off by {worst.update_error:.1e}"
    assert verdict.tolerance < 1e-9


@pytest.mark.parametrize(
    ("model", "strategy"),
    [
        *zip(STATE, itertools.cycle(["ps", "all-reduce"]), strict=False),
        *((model, "ps") for model in ("first-loop", "first-loops-in-step")),
    ],
)
def test_state_and_loops(cases, model, strategy):
    case = cases.model(model)
    verdict = case.check(case.plan(strategy, (1, 1), accumulate=2))
    assert verdict.equivalent, verdict.reason


def test_a_compressor_encodes_once_what_all_micro_batches_bring(cases):
    case = cases.of("digits-mlp", "momentum")
    plain, accumulated = (case.plan("all-reduce", (1, 1), compressor="fp16", accumulate=k) for k in (1, 2))
    assert accumulated.strategy_class == "bounded"
    assert accumulated.traffic == plain.traffic
    # Half precision rounds a gradient by 2⁻¹¹ at most.
    assert 1e-6 < case.check(accumulated).nearest.update_error < 1e-2


class TestOneAtATime:
    """Steps in every order that the graph allows, not only the one that TensorFlow happens to choose."""

    @staticmethod
    def steps(case, plan, task=0):
        """The step before and after its micro-batches take turns."""
        step, topology = case.step, topology_of(plan)
        for rewrite in passes_of(plan, task):
            before, step = step, rewrite.apply(step, topology)
            if rewrite.name == "accumulate":
                return before, step
        raise AssertionError

    @staticmethod
    def begun_early(before, step, topology, task=0):
        """Nodes of a micro-batch that may run before the one before it has been taken in."""
        access = {n for v in step.variables for n in (v.handle, v.placeholder, v.load, v.read)}
        shards = topology.local_shards(task)
        early = set()
        for place, shard in enumerate(shards):
            if not shard.turn:
                continue
            own = f"micro_batch_{shard.turn}/replica_{shard.replica.rank}/"
            nodes = {n.name for n in step.graph.nodes if n.name.startswith(own) and n.name != f"{own}done"}
            assert nodes
            former = shard.turn - 1
            ends = {producer(step.losses[place - 1].tensor)}
            for b in before.boundaries:
                contributed = [c for c in b.contributions if c.rank == shard.replica.rank]
                if contributed:
                    ends |= {
                        producer(r) for r in (contributed[former].values, contributed[former].indices) if r
                    }
            for end in ends:
                early |= nodes - access - descendants(step.graph, [end])
        return early

    @pytest.fixture(params=["digits-cnn", "word-lm"])
    def case(self, cases, request):
        return cases.of(request.param, {"digits-cnn": "momentum", "word-lm": "adagrad"}[request.param])

    @pytest.mark.parametrize("strategy", ["ps", "all-reduce"])
    def test_a_micro_batch_waits_for_the_one_before(self, case, strategy):
        plan = case.plan(strategy, (2, 1), accumulate=2)
        before, step = self.steps(case, plan)
        assert self.begun_early(before, step, topology_of(plan)) == set()

    def test_without_the_order_they_run_together(self, case):
        plan = case.plan("all-reduce", (1, 1), accumulate=3)
        before, step = self.steps(case, plan)
        free = step.graph.with_nodes(
            replace(n, inputs=tuple(i for i in n.inputs if i[0] != "^" or not i.endswith("/done")))
            for n in step.graph.nodes
        )
        assert self.begun_early(before, step, topology_of(plan)) == set()
        assert self.begun_early(before, replace(step, graph=free), topology_of(plan))

    def test_variables_are_loaded_and_read_without_a_step(self, case):
        plan = case.plan("all-reduce", (1, 1), accumulate=2)
        _, step = self.steps(case, plan)
        reached = ancestors(step.graph, [n for v in step.variables for n in (v.load, v.read)])
        assert len(reached) == len(
            {n for v in step.variables for n in (v.handle, v.placeholder, v.load, v.read)}
        )


def crossing(programs):
    """Per task: collectives, reads of variables on other tasks, and other tensors that come from there."""
    results = []
    for program in programs:
        graph = tf.compat.v1.GraphDef.FromString(program.graph_def)
        op_of = {n.name: n.op for n in graph.node}
        task_of = {n.name: n.device.partition("/device:")[0] for n in graph.node}
        sent = {
            producer(ref)
            for n in graph.node
            for ref in n.input
            if ref[0] != "^" and task_of[producer(ref)] != task_of[n.name]
        }
        reads = Counter(op_of[name] == "ReadVariableOp" for name in sent)
        n_collectives = sum(n.op.startswith("Collective") for n in graph.node)
        results.append((n_collectives, reads[True], reads[False]))
    return results


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_payload_is_that_of_one_batch(cases, strategy):
    case = cases.of("digits-mlp", "momentum")
    plans = [case.plan(strategy, (1, 1), accumulate=k, **STRATEGIES[strategy]) for k in (1, 3)]
    assert plans[0].traffic == plans[1].traffic
    assert plans[0].worker_bytes == plans[1].worker_bytes
    assert plans[0].server_bytes == plans[1].server_bytes
    one, several = (crossing(programs_of(case.step, plan)) for plan in plans)
    assert one == several
    assert any(map(sum, one))


DIVISORS = {
    "sum": lambda weight, topology: weight * topology.micro_batches,
    "equal-micro-batches": lambda weight, topology: 1.0 / topology.n_shards,
}


@pytest.mark.parametrize("divisor", DIVISORS)
@pytest.mark.parametrize("strategy", ["ps", "all-reduce"])
def test_a_wrong_divisor(cases, strategy, divisor):
    case = cases.of("digits-mlp", "momentum")
    plan = case.plan(strategy, (1, 1), accumulate=2)
    assert noticed(case, plan, broken(case, plan, after("replicate", reweighted(DIVISORS[divisor]))))


def test_a_micro_batch_that_is_left_out(cases):
    case = cases.of("digits-mlp", "momentum")
    plan = case.plan("all-reduce", (1, 1), accumulate=2)

    def mistake(step, _):
        def without_one(b):
            weights = [*(c.weight for c in b.contributions[:-1]), 0.0]
            parts = zip(b.contributions, weights, strict=True)
            return replace(b, contributions=tuple(replace(c, weight=w) for c, w in parts))

        return replace(step, boundaries=tuple(map(without_one, step.boundaries)))

    assert noticed(case, plan, broken(case, plan, after("replicate", mistake)))


def test_micro_batches_that_draw_the_same_numbers(cases):
    case = cases.of("digits-cnn", "momentum")
    plan = case.plan("all-reduce", (1, 1), accumulate=2)
    first, second = programs_of(case.step, plan)
    drawing = (v.rank for program in (first, second) for v in program.variables if v.seed_word is not None)
    assert set(drawing) == {0, 1, 2, 3}
    same = (replace(v, seed_word=None) if v.rank == 1 else v for v in first.variables)
    assert noticed(case, plan, [replace(first, variables=tuple(same)), second])
