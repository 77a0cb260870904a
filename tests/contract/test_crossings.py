"""Traffic between tasks in a step: each remote variable once, as many bytes as predicted, nothing else."""

from collections import Counter

import pytest

pytestmark = pytest.mark.tensorflow
pytest.importorskip("tensorflow")

from crossings import crossings
from matrix import PARTITIONED

from strategies.planner import payload_matrix

SERVED = ("ps", "ps-load-balancing", "partitioned-ps", "uneven-partitioned-ps", "sharded-ps")


def read_across(case, plan):
    """(variable, reading task) → how often a step pulls it."""
    return Counter((name, c.receiver) for c in crossings(case, plan) for name in c.variables)


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


def sent_between_tasks(case, plan):
    """[sender][receiver] → bytes of a step."""
    n = len(plan.replicas_per_task)
    sent = [[0] * n for _ in range(n)]
    for c in crossings(case, plan):
        sent[c.sender][c.receiver] += c.n_bytes
    return sent


@pytest.mark.parametrize("params", [{}, {"local_proxy_variable": True}], ids=str)
@pytest.mark.parametrize("strategy", SERVED)
def test_servers_send_and_receive_what_the_plan_predicts(cases, strategy, params):
    case = cases.of("wide-mlp", "momentum")
    plan = case.plan(strategy, (1, 2, 1), **params, **PARTITIONED.get(strategy, {}))
    sent = sent_between_tasks(case, plan)
    for row, predicted in zip(sent, payload_matrix(plan, case.summary).sent, strict=True):
        # A learning rate is read across too.
        assert row == pytest.approx(predicted, rel=0.03)


@pytest.mark.parametrize("strategy", SERVED)
def test_the_busiest_server_moves_its_share_for_every_other_worker_each_way(cases, strategy):
    case = cases.of("wide-mlp", "momentum")
    plan = case.plan(strategy, (1, 1, 1), **PARTITIONED.get(strategy, {}))
    sent = sent_between_tasks(case, plan)
    # Momentum has a slot for each variable, which stays where it is.
    shares = [served / 2 for served in plan.server_bytes]
    busiest = shares.index(max(shares))
    for moved in (sent[busiest], [row[busiest] for row in sent]):
        # A worker also moves what others serve.
        own = sum(shares) - shares[busiest]
        assert sum(moved) == pytest.approx(2 * shares[busiest] + own, rel=0.03)


@pytest.mark.parametrize("model", ["loops-and-branches", "recurrent", "looked-up", "accumulated"])
def test_only_collectives_cross_between_replicas_that_own_all_variables(cases, model):
    """A node without a device may run anywhere: TensorFlow makes such nodes of loops in functions."""
    case = cases.model(model)
    assert crossings(case, case.plan("all-reduce", (1, 1))) == []


@pytest.mark.parametrize("params", [{}, {"staleness": 1}], ids=["sync", "stale"])
def test_what_is_small_crosses_in_one_message_each_way(cases, params):
    case = cases.of("digits-cnn", "momentum")
    plan = case.plan("ps-load-balancing", (1, 1), **params)
    # Each worker serves some variables: it sends their values, and the other worker its gradients.
    sent = Counter((c.sender, c.receiver) for c in crossings(case, plan) if c.n_bytes)
    assert sent[1, 0] == 2
    # Beside them comes what the updater's own updates need there: the learning rate, for all in one.
    assert sent[0, 1] in (2, 3)
