"""Each pass broken on purpose: the check says so, and says that the unbroken one is right."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotDone
from dataclasses import dataclass, replace

import numpy as np
import pytest

# Where a mistake leaves workers waiting for each other, the test must not wait long.
pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(240)]
tf = pytest.importorskip("tensorflow")

from cases import Case
from model import N_STEPS
from task_plans import changed_plan

from harness.verification.reference import Outcome
from harness.verification.worker.check import make_reference
from harness.verification.worker.in_process import InProcessCluster, programs_of
from harness.worker.session.session import WorkerSession
from harness.worker.transport.tcp_ring import Ring
from strategies.ir.train_graph import TrainGraph
from strategies.numerics.collectives import gather_rows
from strategies.passes.collectives import all_reduce
from strategies.passes.collectives.all_reduce import DenseAllReduce
from strategies.passes.collectives.tcp_ring import TcpAllReduce
from strategies.passes.parameter_server import synchronous
from strategies.passes.pass_order import passes_of
from strategies.passes.replicate import replicate
from strategies.passes.run import Pass, run_passes
from strategies.plan.schema import Plan
from strategies.planner import topology_of
from strategies.program import Program
from strategies.tf_bridge.program import build_program
from strategies.topology import Topology

Rewrite = Callable[[TrainGraph, Topology], TrainGraph]


@dataclass(frozen=True)
class After:
    """A pass, and what a mistake makes of its result."""

    sound: Pass
    mistake: Rewrite
    name = "after"

    def apply(self, graph: TrainGraph, topology: Topology) -> TrainGraph:
        return self.mistake(self.sound.apply(graph, topology), topology)


def broken(case: Case, plan: Plan, change: Callable[[Pass], Sequence[Pass]]) -> list[Program]:
    """The programs of a plan, some of whose passes are others."""
    topology = topology_of(plan)
    programs = []
    for task in range(topology.n_tasks):
        passes = [rewrite for sound in passes_of(plan, task) for rewrite in change(sound)]
        step = run_passes(passes, case.step, topology).step
        programs.append(build_program(step, topology, task, nodes_before=len(case.step.graph.nodes)))
    return programs


def after(name: str, mistake: Rewrite) -> Callable[[Pass], Sequence[Pass]]:
    return lambda sound: [After(sound, mistake)] if sound.name == name else [sound]


def without(name: str) -> Callable[[Pass], Sequence[Pass]]:
    return lambda sound: [] if sound.name == name else [sound]


def verdicts(case: Case, plan: Plan, programs: Sequence[Program]) -> tuple[bool, bool]:
    """Return the verdicts on the sound programs and on the changed ones."""
    wrong = case.run(plan, programs)
    return case.check(plan).equivalent, wrong.equivalent


def noticed(case: Case, plan: Plan, programs: Sequence[Program]) -> bool:
    return verdicts(case, plan, programs) == (True, False)


def reweighted(weight: Callable[[float, Topology], float]) -> Rewrite:
    def mistake(step: TrainGraph, topology: Topology) -> TrainGraph:
        def changed(b):
            crossing = tuple(replace(c, weight=weight(c.weight, topology)) for c in b.contributions)
            return replace(b, contributions=crossing) if b.role == "gradient" else b

        return replace(step, boundaries=tuple(map(changed, step.boundaries)))

    return mistake


def one_shard_less(step: TrainGraph, _: Topology) -> TrainGraph:
    def without_second(b):
        lost = tuple(replace(c, weight=0.0) if c.rank == 1 else c for c in b.contributions)
        return replace(b, contributions=lost) if b.role == "gradient" else b

    return replace(step, boundaries=tuple(map(without_second, step.boundaries)))


DEADLINE_S = 60.0
DIVISORS = {
    "sum": lambda weight, topology: 1.0,
    "equal-shards": lambda weight, topology: 1.0 / topology.n_replicas,
    "tasks": lambda weight, topology: weight * topology.n_replicas / topology.n_tasks,
}


@pytest.mark.parametrize("divisor", DIVISORS)
@pytest.mark.parametrize("strategy", ["ps", "all-reduce"])
def test_a_wrong_divisor(cases, strategy, divisor):
    case = cases.of("digits-mlp", "momentum")
    plan = case.plan(strategy, (2, 1))
    assert noticed(case, plan, broken(case, plan, after("replicate", reweighted(DIVISORS[divisor]))))


@pytest.mark.parametrize("replicas", [(2,), (2, 1)])
@pytest.mark.parametrize("workload", ["digits-mlp", "word-lm"])
def test_a_replica_that_the_local_sum_leaves_out(cases, workload, replicas):
    case = cases.of(workload, "momentum")
    plan = case.plan("ps", replicas)

    def only_first(step: TrainGraph, _: Topology) -> TrainGraph:
        boundaries = (replace(b, contributions=b.contributions[:1]) for b in step.boundaries)
        return replace(step, boundaries=tuple(boundaries))

    assert noticed(case, plan, broken(case, plan, after("replicate", only_first)))


@pytest.mark.parametrize(
    ("workload", "transport", "dropped"),
    [
        ("digits-mlp", "ring", "dense-all-reduce"),
        ("word-lm", "ring", "dense-all-reduce"),
        ("word-lm", "ring", "sparse-all-gather"),
        ("word-lm", "tcp", "tcp-all-reduce"),
    ],
)
def test_a_dropped_collective(cases, workload, transport, dropped):
    case = cases.of(workload, "momentum")
    plan = case.plan("all-reduce", (1, 1), transport=transport)
    assert noticed(case, plan, broken(case, plan, without(dropped)))


@pytest.mark.parametrize("workload", ["digits-mlp", "word-lm"])
def test_a_ring_that_hands_everybody_their_own(cases, monkeypatch, workload):
    case = cases.of(workload, "momentum")
    plan = case.plan("all-reduce", (1, 1), transport="tcp")
    assert case.check(plan).equivalent
    monkeypatch.setattr(
        Ring, "sum", lambda ring, values, total, wire, factor: np.multiply(values, factor, out=total)
    )
    assert not case.check(plan).equivalent


def test_a_ring_that_hands_everybody_their_own_rows(cases, monkeypatch):
    case = cases.of("word-lm", "momentum")
    plan = case.plan("all-reduce", (1, 1))
    monkeypatch.setattr(Ring, "concatenate", lambda ring, vectors, room: ([v.copy() for v in vectors], 0.0))
    assert not case.check(plan).equivalent


@pytest.mark.parametrize("transport", ["ring", "tcp"])
def test_a_skipped_bucket(cases, transport):
    case = cases.of("digits-mlp", "momentum")
    plan = case.plan("all-reduce", (1, 1), chunk_size=2, transport=transport)

    def skip(sound: Pass) -> Sequence[Pass]:
        if isinstance(sound, DenseAllReduce | TcpAllReduce):
            assert len(sound.plan.buckets) == 3
            others = tuple(node for node in plan.nodes if node.group != 0)
            return [replace(sound, plan=changed_plan(sound.plan, nodes=others))]
        return [sound]

    assert noticed(case, plan, broken(case, plan, skip))


@pytest.mark.parametrize("strategy", ["ps", "all-reduce"])
def test_swapped_shards(cases, strategy):
    """The shards are of unequal size, so that who gets which changes their weights."""
    case = cases.of("digits-mlp", "momentum")
    plan = case.plan(strategy, (1, 1))
    first, second = programs_of(case.step, plan)
    swapped = [
        replace(first, start=second.start, stop=second.stop),
        replace(second, start=first.start, stop=first.stop),
    ]
    assert noticed(case, plan, swapped)


def test_swapped_shards_within_a_task(cases, monkeypatch):
    case = cases.of("digits-mlp", "momentum")
    plan = case.plan("ps", (2,))
    split = replicate.split_batch

    def swapped(batch, replicas, device):
        nodes, shards = split(batch, replicas, device)
        return nodes, dict(zip(shards, reversed(shards.values()), strict=True))

    with monkeypatch.context() as patch:
        patch.setattr(replicate, "split_batch", swapped)
        programs = broken(case, plan, lambda sound: [sound])
    assert noticed(case, plan, programs)


def offset_ids(rows, ids, **keys):
    return gather_rows(rows, ids + 1 - tf.reduce_max(ids) + tf.reduce_min(ids), **keys)


def reversed_rows(rows, ids, **keys):
    rows, ids = gather_rows(rows, ids, **keys)
    return tf.reverse(rows, [0]), ids


@pytest.mark.parametrize("mistake", [offset_ids, reversed_rows])
def test_sparse_rows_under_wrong_ids(cases, monkeypatch, mistake):
    case = cases.of("word-lm", "momentum")
    plan = case.plan("all-reduce", (1, 1), transport="ring")
    with monkeypatch.context() as patch:
        patch.setattr(all_reduce, "gather_rows", mistake)
        programs = broken(case, plan, lambda sound: [sound])
    assert noticed(case, plan, programs)


@pytest.mark.parametrize("strategy", ["ps", "all-reduce", "sharded-update"])
def test_equal_ids_are_merged_against_what_was_asked(cases, strategy):
    """Adagrad adds up the squares of rows; the square of a sum is another number."""
    case = cases.of("word-lm", "adagrad")
    plans = {merge: case.plan(strategy, (2, 1), merge_rows=merge) for merge in (False, True)}
    for merge, plan in plans.items():
        assert noticed(case, plan, programs_of(case.step, plans[not merge]))


@pytest.mark.parametrize("strategy", ["ps", "all-reduce"])
def test_batch_statistics_that_are_not_merged(cases, strategy):
    case = cases.of("digits-cnn", "momentum")
    plan = case.plan(strategy, (2, 1))

    def keep_own(step: TrainGraph, _: Topology) -> TrainGraph:
        def own(b):
            first = b.contributions[0]
            return (
                replace(b, contributions=(replace(first, weight=float(first.rank == 0)),))
                if b.role == "state"
                else b
            )

        return replace(step, boundaries=tuple(map(own, step.boundaries)))

    assert noticed(case, plan, broken(case, plan, after("replicate", keep_own)))


@pytest.mark.parametrize("strategy", ["ps", "all-reduce"])
def test_a_seed_that_is_not_mixed(cases, strategy):
    case = cases.of("digits-cnn", "momentum")
    plan = case.plan(strategy, (1, 1))
    first, second = programs_of(case.step, plan)
    assert any(v.seed_word is not None for v in second.variables)
    same = replace(second, variables=tuple(replace(v, seed_word=None) for v in second.variables))
    assert noticed(case, plan, [first, same])


def test_a_stale_read(cases):
    """The second worker computes its gradients from what variables were at first."""
    case = cases.of("digits-mlp", "momentum")
    plan = case.plan("ps", (1, 1))

    def stale(step: TrainGraph, topology: Topology) -> TrainGraph:
        if step.regions:
            return step
        added, variables = {}, []
        for v in step.variables:
            if v.kind != "trainable":
                continue
            copy = {name: f"stale/{name}" for name in v.access}
            for name, own in copy.items():
                node = step.graph.by_name[name]
                inputs = tuple(copy[ref] for ref in node.inputs)
                attrs = {**node.attrs, "shared_name": own.encode()} if name == v.handle else node.attrs
                device = topology.host_device(1)
                added[name] = replace(node, name=own, inputs=inputs, attrs=attrs, device=device)
            variables.append(
                replace(
                    v,
                    rank=1,
                    handle=copy[v.handle],
                    placeholder=copy[v.placeholder],
                    load=copy[v.load],
                    read=copy[v.read],
                )
            )
        handles = {v.handle for v in step.variables}
        nodes = [
            replace(node, inputs=(f"stale/{node.inputs[0]}", *node.inputs[1:]))
            if node.op == "ReadVariableOp" and node.inputs[0] in handles and node.inputs[0] in added
            else node
            for node in step.graph.nodes
        ]
        graph = step.graph.with_nodes([*nodes, *added.values()])
        return replace(step, graph=graph, variables=(*step.variables, *variables))

    programs = broken(case, plan, after("placement", stale))
    with InProcessCluster(programs, case.initial) as cluster:
        for batch in case.batches:
            cluster.step(batch)
        # Without the copies, which are wrong by themselves: what matters is what they lead to.
        shared = {copy: value for copy, value in cluster.read().items() if copy[1] is None}
    verdict = case.reference((1, 1)).judge(Outcome(values=shared))
    assert case.check(plan).equivalent
    assert not verdict.equivalent


class TestOneWorkerAfterTheOther:
    """Orders that a missing wait allows; a sound program holds its worker back until the other one comes."""

    @pytest.fixture
    def case(self, cases):
        return cases.of("digits-mlp", "momentum")

    @pytest.fixture
    def plan(self, case):
        return case.plan("ps", (1, 1))

    @staticmethod
    def run(
        case: Case,
        programs: Sequence[Program],
        first: int,
        late_steps: int = N_STEPS,
        wait_s: float = DEADLINE_S,
    ) -> tuple[bool, bool]:
        """Return if a worker gets through all steps before the other begins, and if its result is right.

        Args:
            late_steps: steps of the other worker, after which variables are compared.
            wait_s: seconds for the first worker to get through, if it can.
        """
        with InProcessCluster(programs, case.initial) as cluster, ThreadPoolExecutor(2) as threads:

            def steps(session: WorkerSession, n_steps: int = N_STEPS) -> None:
                program = session.program
                for batch in case.batches[:n_steps]:
                    session.step([part[program.start : program.stop] for part in batch])

            eager, late = (cluster.sessions[i] for i in (first, 1 - first))
            early = threads.submit(steps, eager)
            try:
                early.result(timeout=wait_s)
                ran_ahead = True
            except NotDone:
                ran_ahead = False
            threads.submit(steps, late, late_steps).result(timeout=DEADLINE_S)
            early.result(timeout=DEADLINE_S)
            values = cluster.read()
        reference = make_reference(case.step, case.initial, case.topology((1, 1)), case.batches[:late_steps])
        return ran_ahead, reference.judge(Outcome(values=values)).equivalent

    @pytest.mark.parametrize("first", [0, 1])
    def test_a_sound_worker_waits(self, case, plan, first):
        # Long enough for all steps, should nothing hold them back.
        assert self.run(case, programs_of(case.step, plan), first, wait_s=1.0) == (False, True)

    def test_a_worker_that_does_not_wait_for_its_token(self, case, plan):
        def no_wait(step: TrainGraph, _: Topology) -> TrainGraph:
            return replace(step, step_targets=tuple(t for t in step.step_targets if "await" not in t))

        # Its contributions of all steps are in the first update, and none is left for a second one.
        programs = broken(case, plan, after("placement", no_wait))
        assert self.run(case, programs, first=1, late_steps=1) == (True, False)

    def test_an_update_that_does_not_wait_for_pushes(self, case, plan, monkeypatch):
        sound = synchronous.Accumulator.of

        with monkeypatch.context() as patch:
            patch.setattr(synchronous.Accumulator, "of", lambda *args, **_: sound(*args, required=1))
            programs = broken(case, plan, lambda rewrite: [rewrite])
        # A token that nobody takes fills its queue, which would hold the updater back in place of the pushes.
        free = [replace(p, targets=tuple(t for t in p.targets if "tokens/" not in t)) for p in programs]
        assert self.run(case, free, first=0) == (True, False)
