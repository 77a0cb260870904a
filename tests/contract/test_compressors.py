"""Compressed strategies keep what they state: nothing is lost, errors are bounded, training gets there."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(240)]
pytest.importorskip("tensorflow")

import keras
from cases import Case, case_of
from matrix import PARTITIONED

from harness.verification.worker.in_process import InProcessCluster, programs_of
from harness.worker.session.capture_store import InitialValues, save
from strategies.capture.capture import capture
from strategies.errors import StrategyError
from strategies.ir.train_graph import TrainGraph
from strategies.numerics.compressors import Cast
from strategies.passes.replicate.state_variables import StateVariable
from strategies.plan.compressors import BY_NAME
from strategies.plan.schema import Compression, Plan, StepSummary
from strategies.program import Program
from strategies.registry import make_plan
from strategies.summary import summarise
from strategies.topology import Topology
from workloads import registry
from workloads.data.examples import examples_of

RATE = 1e-4
N_STEPS = 3
STRATEGIES = ("ps-load-balancing", "all-reduce")
WITH_FEEDBACK = [name for name, codec in BY_NAME.items() if codec.feedback]
ROUNDED = ("bf16", "bf16-ef", "fp16-ef")
"""Compressors that round as fp16 does, whose losses and sums other tests hold to their bounds."""
Values = Mapping[str, np.ndarray[Any, Any]]


def pytest_generate_tests(metafunc):
    if metafunc.function is test_training_reaches_the_loss_of_uncompressed_training:
        all_cases = metafunc.config.getoption("--all-cases")
        metafunc.parametrize("compressor", [name for name in BY_NAME if all_cases or name not in ROUNDED])


@pytest.fixture(scope="module")
def steady(shared) -> Case:
    """A step of plain descent, fed with one batch again and again, whose gradient hardly changes."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    workload = registry.resolve(
        "digits-mlp", {"units": 24, "optimizer": "sgd", "learning_rate": RATE, "batch_size": 7}
    )
    captured = capture(workload.train_step(), workload.dataset(0).element_spec)
    batch = list(next(examples_of(workload, seed=0).batches(7)))
    return case_of(captured, [batch] * N_STEPS, shared / "steady")


def with_all(plan: Plan, compression: Compression) -> Plan:
    """The plan with a compressor on every gradient, also where it makes it no smaller."""
    nodes = tuple(
        node.model_copy(update={"compressor": compression})
        if len(node.shape) == 2 and not node.sparse
        else node
        for node in plan.nodes
    )
    # Servers of earlier checks are told apart by parameters.
    params = {**plan.strategy_params, "compressor": compression.name}
    return plan.model_copy(update={"nodes": nodes, "strategy_params": params})


LOSSLESS = {
    "topk": Compression(name="topk", ratio=1.0),
    "powersgd": Compression(name="powersgd", rank=1000),
}


@pytest.mark.parametrize("replicas", [(1, 1), (2, 1)])
@pytest.mark.parametrize("workload", ["wide-mlp", "word-lm"])
@pytest.mark.parametrize("strategy", [*STRATEGIES, "hierarchical-all-reduce"])
@pytest.mark.parametrize("compressor", LOSSLESS)
def test_a_compressor_that_keeps_everything_is_exact(cases, workload, strategy, replicas, compressor):
    """Lossless codecs leave no tolerance in which errors of routing and state could hide."""
    keeps_everything(cases.of(workload, "adam"), strategy, replicas, compressor)


@pytest.mark.parametrize(
    ("replicas", "params"),
    [((1, 2, 1), {}), ((1, 1), {"transport": "ring"}), ((2,), {})],
    ids=["one between others", "by collectives", "one worker"],
)
@pytest.mark.parametrize("compressor", LOSSLESS)
def test_so_it_is_however_encodings_travel(cases, compressor, replicas, params):
    keeps_everything(cases.of("wide-mlp", "momentum"), "all-reduce", replicas, compressor, **params)


def keeps_everything(case: Case, strategy: str, replicas: tuple[int, ...], compressor: str, **params):
    lossless = LOSSLESS[compressor]
    plan = with_all(case.plan(strategy, replicas, **params), lossless)
    verdict = case.check(plan)
    worst = max(verdict.variables, key=lambda v: v.update_error)
    # Projecting on a basis rounds more often than adding up does.
    allowed = verdict.tolerance if lossless.name == "topk" else 1e-8
    assert worst.update_error <= allowed, f"{worst.name} is off by {worst.update_error:.1e}"


@pytest.mark.parametrize("transport", ["tcp", "ring"])
def test_a_bucket_may_have_compressors_that_differ_in_their_options(cases, transport):
    case = cases.of("wide-mlp", "momentum")
    plan = case.plan("all-reduce", (1, 1), transport=transport)
    matrices = [node.variable for node in plan.nodes if len(node.shape) == 2 and not node.sparse]
    ranks = {name: 1000 + k % 2 for k, name in enumerate(matrices)}
    nodes = tuple(
        node.model_copy(update={"compressor": Compression(name="powersgd", rank=ranks[node.variable])})
        if node.variable in ranks
        else node
        for node in plan.nodes
    )
    verdict = case.check(plan.model_copy(update={"nodes": nodes}))
    assert max(v.update_error for v in verdict.variables) <= 1e-8


def test_bare_and_encoded_gradients_are_waited_for_apart(cases):
    """Or the first wait would hold the thread that hands over what the ring moves before it."""
    case = cases.of("wide-mlp", "momentum")
    plan = with_all(case.plan("all-reduce", (1, 1)), LOSSLESS["topk"])
    assert {program.n_waiting for program in programs_of(case.step, plan)} == {2}


@dataclass(frozen=True)
class Totals:
    """Totals moved by all steps, by trainable and in units of gradients."""

    sent: Values
    residuals: Values

    @classmethod
    def of(cls, case: Case, plan: Plan, programs: Sequence[Program] | None = None) -> "Totals":
        with InProcessCluster(programs or programs_of(case.step, plan), case.initial) as cluster:
            for batch in case.batches:
                cluster.step(batch)
            values = cluster.read()
        sent = {}
        for v in case.step.variables:
            if v.kind == "trainable":
                copies = [value for (name, _), value in values.items() if name == v.name]
                # Replicas decode the same payloads, so that they never drift apart.
                assert all(copy.tobytes() == copies[0].tobytes() for copy in copies)
                sent[v.name] = (case.initial.value(v.name) - copies[0]) / RATE
        residuals = {
            name: sum(value for (own, _), value in values.items() if own == f"compressor/{name}/residual")
            for name in sent
        }
        return cls(sent=sent, residuals=residuals)

    def missing(self, exact: "Totals") -> float:
        """The largest part of a gradient that was neither sent nor kept, relative to its tensor's largest."""
        return max(
            np.abs(total - self.sent[name] - self.residuals[name]).max() / np.abs(total).max()
            for name, total in exact.sent.items()
        )


def plan_of(case: Case, strategy: str, compressor: str | None, replicas: tuple[int, ...] = (2, 1)) -> Plan:
    options = {"topk": {"compressor_ratio": 0.1}, "powersgd": {"compressor_rank": 2}}
    return case.plan(strategy, replicas, compressor=compressor, **options.get(compressor or "", {}))


@pytest.mark.parametrize("strategy", [*STRATEGIES, "hierarchical-all-reduce"])
@pytest.mark.parametrize("compressor", WITH_FEEDBACK)
def test_what_workers_sent_and_kept_are_the_sum_of_all_gradients(steady, strategy, compressor):
    plan = plan_of(steady, strategy, compressor)
    assert any(node.compressor for node in plan.nodes)
    totals = Totals.of(steady, plan)
    exact = Totals.of(steady, plan_of(steady, strategy, None))
    # Gradients hardly change while variables do; what a sum in the wire type rounds away is not fed back.
    rounded = {"fp16-ef": 2.0**-10, "bf16-ef": 2.0**-7}.get(compressor, 0.0)
    assert totals.missing(exact) < 1e-3 + (N_STEPS * rounded if "all-reduce" in strategy else 0.0)
    assert max(np.abs(value).max() for value in totals.residuals.values()) > 0


@pytest.mark.parametrize(
    ("strategy", "compressor"),
    [
        ("partitioned-ps", "powersgd"),
        ("random-axis-partitioned-all-reduce", "powersgd"),
    ],
)
def test_what_workers_sent_and_kept_of_parts_is_the_sum_of_all_gradients(steady, strategy, compressor):
    params = {**PARTITIONED[strategy], "compressor": compressor}
    plan = steady.plan(strategy, (2, 1), **params)
    assert any(node.compressor and node.partition for node in plan.nodes)
    result, exact = Totals.of(steady, plan), Totals.of(steady, plan_of(steady, "all-reduce", None))
    assert result.missing(exact) < 1e-3
    assert max(np.abs(value).max() for value in result.residuals.values()) > 0


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("compressor", ["topk", "powersgd", "signsgd-ef"])
def test_feedback_that_is_dropped_is_noticed(steady, monkeypatch, strategy, compressor):
    plan = plan_of(steady, strategy, compressor)
    exact = Totals.of(steady, plan_of(steady, strategy, None))
    keep = StateVariable.keep
    with monkeypatch.context() as patch:
        patch.setattr(StateVariable, "keep", lambda state, _: keep(state, state.value))
        forgetful = programs_of(steady.step, plan)
    assert Totals.of(steady, plan).missing(exact) < 1e-3
    assert Totals.of(steady, plan, forgetful).missing(exact) > 0.1


@pytest.mark.parametrize(
    ("strategy", "compressor", "params", "carried"),
    [
        ("all-reduce", "fp16", {}, "auto"),
        ("all-reduce", "bf16", {}, "tcp"),
        ("all-reduce", "bf16", {"transport": "ring"}, "auto"),
        *(("ps", compressor, {}, None) for compressor in ("fp16", "bf16")),
    ],
)
def test_half_precision_keeps_its_bound(steady, strategy, compressor, params, carried):
    replicas = (2, 1)
    plan = steady.plan(strategy, replicas, compressor=compressor, **params)
    assert {node.transport for node in plan.nodes if node.compressor} == {carried}
    totals = Totals.of(steady, plan)
    exact = Totals.of(steady, plan_of(steady, strategy, None, replicas))
    n_terms = sum(replicas) if strategy == "all-reduce" else 1
    codec = Cast(wire=BY_NAME[compressor].codec, n_terms=n_terms)
    for name, magnitude in magnitudes(steady, replicas).items():
        error = np.abs(totals.sent[name] - exact.sent[name])
        bound = codec.relative_error * magnitude + N_STEPS * codec.absolute_error
        assert (error <= bound + 1e-3 * bound.max()).all()
        assert error.max() > 1e-3 * bound.max()


def magnitudes(case: Case, replicas: tuple[int, ...]) -> Values:
    """Σ|g_i| over replicas and steps, from replicas that do not communicate."""
    plan = case.plan("none", replicas)
    with InProcessCluster(programs_of(case.step, plan), case.initial) as cluster:
        for batch in case.batches:
            cluster.step(batch)
        values = cluster.read()
    share = {r.rank: r.examples / plan.batch_size for r in case.topology(replicas).replicas()}
    return {
        v.name: sum(
            share[rank] * np.abs(case.initial.value(v.name) - value) / RATE
            for (name, rank), value in values.items()
            if name == v.name and rank is not None
        )
        for v in case.step.variables
        if v.kind == "trainable"
    }


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_quantized_gradients_are_off_by_less_than_a_level_of_each_replica(steady, strategy):
    totals = Totals.of(steady, plan_of(steady, strategy, "qsgd"))
    exact = Totals.of(steady, plan_of(steady, strategy, None))
    levels = 127
    compressed = {n.variable for n in plan_of(steady, strategy, "qsgd").nodes if n.compressor}
    assert compressed
    for name, magnitude in magnitudes(steady, (2, 1)).items():
        if name in compressed:
            error = np.abs(totals.sent[name] - exact.sent[name]).max()
            # Every replica's largest value is at most the largest sum of its and the others' magnitudes.
            assert 0 < error <= 3 * magnitude.max() / levels


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_compressor_state_is_loaded_and_read_like_other_variables(steady, strategy):
    plan = plan_of(steady, strategy, "powersgd")
    with InProcessCluster(programs_of(steady.step, plan), steady.initial) as cluster:
        first = cluster.read()
        cluster.step(steady.batches[0])
        after = cluster.read()
        cluster.each(lambda session: session.load())
        again = cluster.read()
        cluster.step(steady.batches[0])
        repeated = cluster.read()
    states = [copy for copy in first if copy[0].startswith("compressor/")]
    n_owners = 3 if strategy == "all-reduce" else 2
    n_compressed = sum(node.compressor is not None for node in plan.nodes)
    assert len(states) == 2 * n_compressed * n_owners
    assert all((first[copy] != after[copy]).any() for copy in states)
    assert all(first[copy].tobytes() == again[copy].tobytes() for copy in first)
    assert all(after[copy].tobytes() == repeated[copy].tobytes() for copy in states)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_plan_that_compresses_rows_is_refused_by_name(cases, strategy):
    case = cases.of("word-lm", "momentum")
    plan = case.plan(strategy, (1, 1))
    nodes = tuple(
        node.model_copy(update={"compressor": Compression(name="fp16")}) if node.sparse else node
        for node in plan.nodes
    )
    with pytest.raises(StrategyError, match=r"embeddings.*takes dense floating gradients, got rows"):
        programs_of(case.step, plan.model_copy(update={"nodes": nodes}))


@dataclass(frozen=True)
class Training:
    """`digits-cnn` as a run has it: its own size and types, and the same batches for every strategy."""

    step: TrainGraph
    summary: StepSummary
    initial: InitialValues
    epochs: Sequence[Sequence[Sequence[Any]]]

    def plan(self, compressor: str | None) -> Plan:
        topology = Topology(replicas_per_task=(1, 1), batch_size=len(self.epochs[0][0][0]))
        return make_plan("all-reduce", {"compressor": compressor}, self.summary, topology)

    def last_loss(self, programs: Sequence[Program]) -> float:
        """Mean loss over the last epoch."""
        with InProcessCluster(programs, self.initial) as cluster:
            losses = [[cluster.step(batch) for batch in epoch] for epoch in self.epochs]
        return float(np.mean(losses[-1]))


@pytest.fixture(scope="module")
def training(shared) -> Training:
    """Plain descent without dropout, whose draws would differ by more than compressors make losses differ."""
    n_epochs, batch_size = 12, 64
    keras.backend.clear_session()
    keras.utils.set_random_seed(1)
    params = {"optimizer": "sgd", "dropout": 0.0, "batch_size": batch_size}
    workload = registry.resolve("digits-cnn", params)
    captured = capture(workload.train_step(), workload.dataset(0).element_spec)
    summary = summarise(captured.step, "digits-cnn", {})
    save(shared / "training", captured.step, captured.initial)
    fed = examples_of(workload, seed=0).batches(batch_size)
    n_steps = 1438 // batch_size
    return Training(
        step=captured.step,
        summary=summary,
        initial=InitialValues(shared / "training"),
        epochs=[[list(next(fed)) for _ in range(n_steps)] for _ in range(n_epochs)],
    )


@pytest.fixture(scope="module")
def uncompressed_loss(training) -> float:
    return training.last_loss(programs_of(training.step, training.plan(None)))


def test_training_reaches_the_loss_of_uncompressed_training(training, uncompressed_loss, compressor):
    loss = training.last_loss(programs_of(training.step, training.plan(compressor)))
    assert loss <= 1.05 * uncompressed_loss


def test_training_without_feedback_does_not_get_there(training, uncompressed_loss, monkeypatch):
    keep = StateVariable.keep
    with monkeypatch.context() as patch:
        patch.setattr(StateVariable, "keep", lambda state, _: keep(state, state.value))
        forgetful = programs_of(training.step, training.plan("topk"))
    assert training.last_loss(forgetful) > 1.5 * uncompressed_loss
