"""What a step sends between tasks: each remote variable once, as many bytes as predicted, nothing unasked."""

from collections import Counter

import pytest

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

from crossings import crossings  # noqa: E402


def read_across(case, plan):
    """(variable, reading task) → how often a step pulls it."""
    return Counter((c.variable, c.receiver) for c in crossings(case, plan) if c.variable is not None)


def remote_trainables(case, plan, task):
    sparse = {b.variable for b in case.step.gradients() if b.indices is not None}
    served = {n.variable: n.destination for n in plan.nodes}
    return {
        v.handle
        for v in case.step.variables
        if v.kind == "trainable" and v.name not in sparse and served[v.name] not in (None, task)
    }


@pytest.mark.parametrize("model", ["word-lm+rmsprop", "recurrent", "first-loop", "loops-and-branches"])
def test_a_replica_reads_a_remote_variable_once_however_many_rounds_use_it(cases, model):
    case = cases.model(model)
    plan = case.plan("ps-load-balancing", (1, 2))
    reads = read_across(case, plan)
    for task, n_replicas in enumerate((1, 2)):
        assert {v: reads[v, task] for v in remote_trainables(case, plan, task)} == dict.fromkeys(
            remote_trainables(case, plan, task), n_replicas
        )


def test_proxies_lower_the_reads_of_a_worker_to_one_of_each_variable(cases):
    case = cases.of("word-lm", "rmsprop")
    plan = case.plan("ps-load-balancing", (2, 2), local_proxy_variable=True)
    reads = read_across(case, plan)
    remote = [(v, task) for task in range(2) for v in remote_trainables(case, plan, task)]
    assert {key: reads[key] for key in remote} == dict.fromkeys(remote, 1)


@pytest.mark.parametrize("params", [{}, {"local_proxy_variable": True}], ids=str)
@pytest.mark.parametrize("strategy", ["ps", "ps-load-balancing"])
def test_servers_send_and_receive_what_the_plan_predicts(cases, strategy, params):
    case = cases.of("wide-mlp", "momentum")
    plan = case.plan(strategy, (1, 2, 1), **params)
    sent = [[0] * 3 for _ in range(3)]
    for c in crossings(case, plan):
        sent[c.sender][c.receiver] += c.n_bytes
    for row, predicted in zip(sent, plan.payload_matrix, strict=True):
        # A learning rate is read across too.
        assert row == pytest.approx(predicted, rel=0.03)


@pytest.mark.parametrize("model", ["loops-and-branches", "recurrent", "looked-up", "accumulated"])
def test_only_collectives_cross_between_replicas_that_own_all_variables(cases, model):
    """A node without a device may run anywhere: TensorFlow makes such nodes of loops in functions."""
    case = cases.model(model)
    assert crossings(case, case.plan("all-reduce", (1, 1))) == []
