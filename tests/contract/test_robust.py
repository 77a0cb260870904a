"""Rules over workers' gradients in real steps: what the plain definitions say, with faults and without."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

# Where a mistake leaves workers waiting for each other, the test must not wait long.
pytestmark = [pytest.mark.tensorflow, pytest.mark.timeout(240)]
pytest.importorskip("tensorflow")

from aggregation_reference import Asked, combined
from checkpointing import restored, steps

from harness.errors import UsageError
from harness.verification.worker.in_process import InProcessCluster, programs_of
from harness.verification.worker.rounding import PLAIN
from harness.verification.worker.shard_steps import ShardSteps
from harness.worker.session.checkpoint import first_value
from strategies.errors import StrategyError, UnsupportedError
from strategies.numerics.aggregators import median_of_servers
from strategies.passes.parameter_server import replicated_servers
from strategies.passes.robust import gradient_vector
from strategies.plan.aggregation import BY_NAME, Aggregation
from strategies.plan.faults import Fault, fault_of
from strategies.planner import topology_of

STRATEGIES = ("robust-ps", "robust-all-reduce")
WORKERS = 7
RULES = {name: {"rule": name, "f": min(2, BY_NAME[name].most(WORKERS))} for name in BY_NAME}


def values_after(case: Any, plan: Any) -> dict[Any, Any]:
    """Every copy of the captured variables after the case's steps, all workers in this process."""
    with InProcessCluster(programs_of(case.step, plan), case.initial) as cluster:
        for batch in case.batches:
            cluster.step(batch)
        ours = {v.name for v in case.step.variables}
        return {copy: value for copy, value in cluster.read().items() if copy[0] in ours}


def expected_after(case: Any, plan: Any, faults: tuple[Fault, ...] = ()) -> dict[Any, Any]:
    """The same by the reference: shards one after the other, gradients combined outside of TensorFlow."""
    topology = topology_of(plan)
    aggregation = plan.aggregation
    gradients = case.step.gradients()
    sent_before: dict[int, np.ndarray] = {}
    state: dict[str, np.ndarray] = {}

    def combine(_rounding: Any, n: int, shards: Any, crossed: Any) -> dict[str, Any]:
        owners = [shard.replica.task for shard in shards]
        ids = {b.values: _ids(b, crossed) for b in gradients}
        rows = []
        for worker in range(topology.n_tasks):
            own = [(s.examples, c) for s, o, c in zip(shards, owners, crossed, strict=True) if o == worker]
            total = sum(count for count, _ in own)
            rows.append(sum(_vector(gradients, c, ids) * (count / total) for count, c in own))
        computed = [row.copy() for row in rows]
        for fault in faults:
            rows[fault.worker] = _sent(fault, computed, rows, faults, sent_before, n)
        sent_before.update(enumerate(computed))
        state["centre"] = vector = combined(rows, replace(_asked(aggregation), centre=state.get("centre")))
        return _apart(gradients, vector, ids, crossed[0])

    with ShardSteps(case.step, case.initial, topology) as steps:
        steps.begin(PLAIN)
        for n, batch in enumerate(case.batches):
            steps.step(n, batch, combine)
        return steps.snapshot()


def _asked(aggregation: Aggregation) -> Asked:
    return Asked(
        rule=aggregation.rule,
        f=aggregation.f,
        m=aggregation.m,
        variant=aggregation.variant,
        iterations=aggregation.iterations,
        nu=aggregation.nu,
        tau=aggregation.tau,
    )


def _ids(boundary: Any, crossed: Any) -> np.ndarray | None:
    if boundary.indices is None:
        return None
    return np.unique(np.concatenate([own[boundary.values][1] for own in crossed]))


def _vector(gradients: Any, own: Any, ids: Any) -> np.ndarray:
    parts = []
    for b in gradients:
        values, rows = own[b.values]
        if rows is None:
            parts.append(values.ravel())
            continue
        whole = np.zeros((len(ids[b.values]), *values.shape[1:]))
        np.add.at(whole, np.searchsorted(ids[b.values], rows), values)
        parts.append(whole.ravel())
    return np.concatenate(parts)


def _apart(gradients: Any, vector: np.ndarray, ids: Any, like: Any) -> dict[str, Any]:
    result, start = {}, 0
    for b in gradients:
        values, rows = like[b.values]
        shape = values.shape if rows is None else (len(ids[b.values]), *values.shape[1:])
        stop = start + int(np.prod(shape))
        part = vector[start:stop].reshape(shape)
        result[b.values] = (part, None if rows is None else ids[b.values].astype(rows.dtype))
        start = stop
    return result


def _sent(fault: Fault, computed: Any, rows: Any, faults: Any, before: Any, n: int) -> np.ndarray:
    own, bad = computed[fault.worker], {fault.worker for fault in faults}
    honest = [row for worker, row in enumerate(computed) if worker not in bad]
    if n < fault.from_step:
        return own
    scale = fault.scale or 0.0
    return {
        "sign-flip": own * -scale,
        "reverse": own * -scale,
        "zero": own * 0,
        "nan": own * np.nan,
        "stale": before.get(fault.worker, own * 0),
        "mimic": honest[0],
        "inner-product": np.mean(honest, axis=0) * -scale,
        "little-is-enough": np.mean(honest, axis=0) - np.std(honest, axis=0) * scale,
    }[fault.kind]


def assert_alike(got: dict[Any, Any], expected: dict[Any, Any], case: Any, name: str) -> None:
    by_name = {variable: value for (variable, _), value in expected.items()}
    for (variable, _), value in got.items():
        wanted, first = by_name[variable], case.initial.stored(variable)
        moved = max(np.abs(wanted - first).max(), 1e-3)
        assert np.abs(value - wanted).max() <= 1e-9 * moved, (name, variable)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("rule", BY_NAME)
def test_steps_are_those_of_the_definition(cases, rule, strategy):
    case = cases.of("digits-mlp", "momentum")
    plan = case.plan(strategy, (1,) * WORKERS, **RULES[rule])
    if rule == "mean":
        # By examples, unlike the reference here.
        assert case.check(plan).equivalent
        return
    assert_alike(values_after(case, plan), expected_after(case, plan), case, rule)


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("rule", ["median", "multi-krum"])
def test_workers_with_several_replicas_and_rows_of_tables(cases, rule, strategy):
    """A worker's gradient is the mean over its replicas; rows are combined over the union of all workers'."""
    case = cases.of("word-lm", "momentum")
    plan = case.plan(strategy, (2, 1, 1, 2, 1), rule=rule, f=1)
    assert_alike(values_after(case, plan), expected_after(case, plan), case, rule)


FAULTS = {
    "sign-flip": [{"worker": 2, "kind": "sign-flip", "scale": 10.0, "from_step": 1}],
    "reverse": [{"worker": 0, "kind": "reverse"}],
    "nan": [{"worker": 1, "kind": "nan"}, {"worker": 3, "kind": "zero"}],
    "stale": [{"worker": 4, "kind": "stale"}],
    "mimic": [{"worker": 2, "kind": "mimic"}, {"worker": 0, "kind": "mimic"}],
    "inner-product": [{"worker": 2, "kind": "inner-product", "scale": 0.5}],
    "little-is-enough": [{"worker": 2, "kind": "little-is-enough", "scale": 1.5}],
}


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_what_they_say(cases, name, strategy):
    case = cases.of("digits-mlp", "momentum")
    faults = tuple(fault_of(document, seed=0) for document in FAULTS[name])
    plan = case.plan(strategy, (1,) * 5, rule="meamed", f=2)
    faulty = plan.model_copy(update={"faults": faults})
    got = values_after(case, faulty)
    assert_alike(got, expected_after(case, faulty, faults), case, name)
    sound = values_after(case, plan)
    assert any(np.abs(value - sound[copy]).max() > 1e-9 for copy, value in got.items())


@pytest.mark.parametrize("strategy", ["ps", "all-reduce", "robust-ps", "sharded-update"])
def test_a_fault_in_a_sum_is_in_the_sum(cases, strategy):
    """Fault `zero` removes the other worker's half of a mean."""
    case = cases.of("digits-mlp", "momentum").with_examples(6)
    params = {"rule": "mean"} if strategy == "robust-ps" else {}
    faults = (fault_of({"worker": 1, "kind": "zero"}, seed=0),)
    plan = case.plan(strategy, (1, 1), **params).model_copy(update={"faults": faults})
    mean = case.plan("robust-ps", (1, 1), rule="mean").model_copy(update={"faults": faults})
    got, expected = values_after(case, plan), expected_after(case, mean, faults)
    assert_alike(got, expected, case, strategy)


def test_random_draws_are_those_of_the_seed(cases):
    case = cases.of("digits-mlp", "momentum")
    plan = case.plan("robust-ps", (1, 1, 1), rule="mean")

    def drawn(seed: int, kind: str = "random") -> dict[Any, Any]:
        faults = (fault_of({"worker": 1, "kind": kind, "rate": 0.7}, seed=seed),)
        return values_after(case, plan.model_copy(update={"faults": faults}))

    first, again, other = drawn(1), drawn(1), drawn(2)
    for copy, value in first.items():
        np.testing.assert_array_equal(value, again[copy])
    assert any((value != other[copy]).any() for copy, value in first.items())
    assert any((value != first[copy]).any() for copy, value in drawn(1, "gaussian").items())


@pytest.mark.parametrize(
    ("other", "kind"),
    [
        ("ps", "random"),
        ("all-reduce", "gaussian"),
        ("hierarchical-all-reduce", "random"),
        ("fully-sharded", "gaussian"),
    ],
)
def test_draws_weigh_alike_in_sums_and_under_rules(cases, other, kind):
    """Whatever a contribution is multiplied by on its way, and whenever."""
    case = cases.of("digits-mlp", "momentum")
    faults = (fault_of({"worker": 1, "kind": kind, "scale": 3.0}, seed=4),)
    plans = (case.plan("robust-ps", (1, 1, 1), rule="mean"), case.plan(other, (1, 1, 1)))
    by_rule, summed = (
        {
            name: value
            for (name, _), value in values_after(case, plan.model_copy(update={"faults": faults})).items()
        }
        for plan in plans
    )
    for name, value in by_rule.items():
        np.testing.assert_allclose(summed[name], value, rtol=1e-9, atol=1e-12)


def test_flipped_labels_are_what_a_worker_learns_from(cases):
    case = cases.of("digits-mlp", "momentum")
    faults = (fault_of({"worker": 1, "kind": "label-flip", "classes": 10}, seed=0),)
    plan = case.plan("all-reduce", (1, 1))
    got = values_after(case, plan.model_copy(update={"faults": faults}))
    half = len(case.batches[0][0]) - len(case.batches[0][0]) // 2
    flipped = [
        [images, np.concatenate([labels[:half], 9 - labels[half:]])] for images, labels in case.batches
    ]
    other = replace(case, batches=flipped, _references={}, _verdicts={}, _shorter={})
    expected = values_after(other, plan)
    for copy, value in got.items():
        np.testing.assert_allclose(value, expected[copy], rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("rule", ["median", "multi-krum", "centered-clipping"])
def test_servers_of_copies_combine_as_one_does(cases, rule):
    case = cases.of("digits-mlp", "momentum")
    one = values_after(case, case.plan("robust-ps", (1,) * 5, rule=rule, f=1))
    three = values_after(case, case.plan("robust-ps", (1,) * 5, rule=rule, f=1, servers=3, lying=1))
    by_name = {name: value for (name, _), value in one.items()}
    assert {rank for _, rank in three} >= {0, 1, 2}
    for (name, _), value in three.items():
        np.testing.assert_allclose(value, by_name[name], rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize(("servers", "lying"), [(2, 0), (3, 1), (4, 1)])
@pytest.mark.parametrize("model", ["digits-cnn+adam", "word-lm+adagrad"])
def test_servers_that_lie_change_nothing_as_long_as_most_do_not(cases, model, servers, lying):
    case = cases.model(model)
    plan = case.plan("robust-ps", (1,) * 4, rule="mean", servers=servers, lying=lying)
    verdict = case.check(plan)
    assert verdict.equivalent, verdict.reason


@pytest.mark.parametrize("model", ["digits-mlp", "word-lm"])
def test_many_workers_share_the_server_s_queue(cases, monkeypatch, model):
    monkeypatch.setattr(gradient_vector, "MOST_QUEUES", 2)
    case = cases.of(model, "momentum")
    plan = case.plan("robust-ps", (1,) * 3, rule="median", f=1)
    assert_alike(values_after(case, plan), expected_after(case, plan), case, model)


def test_most_servers_must_be_honest(cases, monkeypatch):
    """Were two of three to lie, steps would go wrong: the test above can fail."""
    case = cases.of("digits-mlp", "momentum")
    plan = case.plan("robust-ps", (1,) * 3, rule="mean", servers=3, lying=1)
    monkeypatch.setattr(
        replicated_servers,
        "median_of_servers",
        lambda *values, n_lying: median_of_servers(*values, n_lying=2),
    )
    assert case.run(plan, programs_of(case.step, plan)).equivalent is False
    monkeypatch.undo()
    with pytest.raises(StrategyError, match="lying=2 needs servers ≥ 2·lying \\+ 1, got servers=3; raise"):
        case.plan("robust-ps", (1,) * 3, rule="mean", servers=3, lying=2)
    with pytest.raises(UnsupportedError, match="need one replica in each worker, got 2"):
        case.plan("robust-ps", (2, 1, 1), rule="mean", servers=3)


def test_counts_tell_whom_a_rule_chose_and_what_was_not_finite(cases):
    case = cases.of("digits-mlp", "momentum")
    faults = tuple(
        fault_of(document, seed=0)
        for document in ({"worker": 2, "kind": "nan"}, {"worker": 4, "kind": "sign-flip", "scale": 50.0})
    )
    plan = case.plan("robust-ps", (1,) * 7, rule="multi-krum", f=2).model_copy(update={"faults": faults})
    with InProcessCluster(programs_of(case.step, plan), case.initial) as cluster:
        for batch in case.batches:
            cluster.step(batch)
        (counts,) = cluster.sessions[0].aggregation_counts()
        assert all(not session.aggregation_counts() for session in cluster.sessions[1:])
    n_steps = len(case.batches)
    chosen, not_finite, steps = counts
    assert steps.tolist() == [n_steps] * 7
    assert not_finite.tolist() == [0, 0, n_steps, 0, 0, 0, 0]
    assert (chosen[2], chosen[4], chosen.sum()) == (0, 0, 3 * n_steps)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_what_a_rule_keeps_goes_on_with_a_checkpoint(cases, tmp_path, strategy):
    case = cases.of("digits-mlp", "momentum")
    plan = case.plan(strategy, (1, 1, 1), rule="centered-clipping", f=1, tau=0.1)
    whole = steps(case, plan, case.batches)
    steps(case, plan, case.batches[:1], tmp_path / "saved")
    continued = steps(restored(case, tmp_path / "saved"), plan, case.batches[1:])
    for copy, value in whole.items():
        if not copy[0].startswith("aggregate/counts"):
            np.testing.assert_allclose(continued[copy], value, rtol=1e-12, atol=1e-15)


def test_new_workers_get_what_the_others_have_of_a_rule(cases, tmp_path):
    case = cases.of("digits-mlp", "momentum")
    few = case.plan("robust-all-reduce", (1, 1, 1), rule="centered-clipping", f=1, tau=0.1)
    more = case.plan("robust-all-reduce", (1,) * 5, rule="centered-clipping", f=1, tau=0.1)
    steps(case, few, case.batches[:1], tmp_path / "saved")
    values = steps(restored(case, tmp_path / "saved"), more, case.batches[1:])
    kernels = [value for (name, _), value in values.items() if name == "digits_mlp/logits/kernel"]
    assert len(kernels) == 5
    for kernel in kernels[1:]:
        np.testing.assert_array_equal(kernel, kernels[0])


def test_what_another_model_kept_is_refused(cases, tmp_path):
    case = cases.of("digits-mlp", "momentum")
    plan = case.plan("robust-ps", (1, 1, 1), rule="centered-clipping", f=1)
    programs = programs_of(case.step, plan)
    centre = next(v for v in programs[0].variables if v.stored == "aggregate/centre")
    with pytest.raises(
        UsageError, match=r"state 'aggregate/centre' must have the shape .* got \[3\]; restore"
    ):
        first_value(centre, {0: np.zeros(3)})
