from dataclasses import replace

import pytest
from planning import slot, state, step_of, trainable

from strategies.errors import StrategyError, UnsupportedError
from strategies.registry import STRATEGIES, make_plan, resolve
from strategies.topology import Topology

STEP = step_of(trainable("a", 3), slot("a/m", "a", 3), state("mean", 2), trainable("b", 5), trainable("c", 7))
WORKERS = Topology(replicas_per_task=(1, 1), batch_size=4)
REPLICAS = Topology(replicas_per_task=(2,), batch_size=4)
ALONE = Topology(replicas_per_task=(1,), batch_size=4)
SHARING = replace(WORKERS, device="gpu", shares_devices=True)
SHARING_ONE = replace(REPLICAS, device="gpu", shares_devices=True)


def test_gradients_are_summed_and_nothing_else_is_sent():
    plan = make_plan("tf-multi-worker-mirrored", {}, STEP, WORKERS)
    summed = {n.variable for n in plan.nodes if n.synchronizer == "all-reduce"}
    assert summed == {"a", "b", "c"}
    n_bytes = sum(n.bytes for n in plan.nodes if n.variable in summed)
    # Each of two members of a ring sends 2 (2 − 1) / 2 of what is summed.
    assert plan.payload_bytes_per_step == 2 * n_bytes
    assert plan.notes == ()


def test_packs_are_those_of_tensorflow():
    whole = make_plan("tf-multi-worker-mirrored", {}, STEP, WORKERS)
    assert {n.group for n in whole.nodes if n.synchronizer == "all-reduce"} == {0}
    sizes = {n.variable: n.bytes for n in whole.nodes}
    # A pack is closed once it holds more than the limit: the last variable alone does, the next two do not.
    packed = make_plan("tf-multi-worker-mirrored", {"bytes_per_pack": sizes["c"] - 1}, STEP, WORKERS)
    groups = {n.variable: n.group for n in packed.nodes if n.synchronizer == "all-reduce"}
    assert groups == {"c": 0, "b": 1, "a": 1}


def test_replicas_of_one_worker_send_nothing_over_the_network():
    plan = make_plan("tf-mirrored", {}, STEP, REPLICAS)
    assert {n.variable for n in plan.nodes if n.synchronizer == "all-reduce"} == {"a", "b", "c"}
    assert plan.payload_bytes_per_step == 0


def test_servers_get_variables_in_turn_and_slots_with_their_variable():
    plan = make_plan("tf-parameter-server", {}, STEP, WORKERS)
    assert plan.strategy_class == "statistical"
    assert {n.variable: n.destination for n in plan.nodes} == {"a": 0, "a/m": 0, "mean": 1, "b": 0, "c": 1}
    assert {n.variable for n in plan.nodes if n.synchronizer == "ps"} == {"a", "b", "c", "mean"}
    sent = sum(n.bytes for n in plan.nodes if n.synchronizer == "ps")
    # The worker without the server pulls and pushes each once.
    assert plan.payload_bytes_per_step == 2 * sent
    assert sum(plan.server_bytes) == sum(n.bytes for n in plan.nodes)
    assert plan.worker_bytes == 0


def test_it_has_as_many_servers_as_it_is_given():
    plan = make_plan("tf-parameter-server", {"servers": 1}, STEP, WORKERS)
    assert {n.destination for n in plan.nodes} == {0}


RIVALS = [
    "tf-one-device",
    "tf-mirrored",
    "tf-central-storage",
    "tf-multi-worker-mirrored",
    "tf-parameter-server",
]


@pytest.mark.parametrize("name", RIVALS)
def test_alone_it_sends_nothing_and_claims_no_captured_graph(name):
    plan = make_plan(name, {}, STEP, ALONE)
    assert plan.payload_bytes_per_step == 0
    assert plan.notes == ()
    assert resolve(name)[0].runner != "graph"


@pytest.mark.parametrize(
    ("name", "params", "topology", "message"),
    [
        ("tf-mirrored", {}, WORKERS, "keeps replicas within one process, got 2 workers; use workers=1"),
        ("tf-central-storage", {}, WORKERS, "keeps replicas within one process, got 2 workers; use workers"),
        ("tf-mirrored", {"cross_device_ops": "nccl"}, REPLICAS, "needs GPUs, got device cpu; use auto"),
        ("tf-multi-worker-mirrored", {}, REPLICAS, "one replica of all CPUs of a worker, got 2 replicas"),
        ("tf-multi-worker-mirrored", {"communication": "nccl"}, WORKERS, "needs GPUs, got device cpu"),
        (
            "tf-mirrored",
            {"cross_device_ops": "nccl"},
            SHARING_ONE,
            "cross_device_ops=nccl needs a GPU for each replica, got replicas that share one; use auto",
        ),
        (
            "tf-multi-worker-mirrored",
            {"communication": "nccl"},
            SHARING,
            "communication=nccl needs a GPU for each replica, got replicas that share one; use auto",
        ),
        (
            "tf-multi-worker-mirrored",
            {},
            Topology(replicas_per_task=(2, 1), batch_size=4, device="gpu"),
            "needs as many replicas on each worker, got (2, 1); make them equal",
        ),
        ("tf-parameter-server", {}, REPLICAS, "one replica of all CPUs of a worker, got 2 replicas"),
        ("tf-parameter-server", {"servers": 3}, WORKERS, "got servers=3 on 2 workers; lower servers"),
        (
            "tf-parameter-server",
            {},
            Topology(replicas_per_task=(1, 1), batch_size=5),
            "shares of one size, got 5 examples for 2 workers; make batch_size a multiple",
        ),
        (
            "tf-parameter-server",
            {},
            Topology(replicas_per_task=(1, 1), batch_size=4, device="gpu"),
            "on CPU workers, got device gpu; use tf-multi-worker-mirrored there",
        ),
    ],
)
def test_what_tensorflow_cannot_run_is_refused_with_the_way_out(name, params, topology, message):
    with pytest.raises(UnsupportedError) as raised:
        make_plan(name, params, STEP, topology)
    assert message in str(raised.value)
    assert str(raised.value).startswith(f"strategy {name!r}: ")
    assert "\n" not in str(raised.value)


def test_replicas_that_share_a_gpu_are_summed_by_tensorflows_ring():
    for name, topology in {"tf-mirrored": SHARING_ONE, "tf-multi-worker-mirrored": SHARING}.items():
        (note,) = make_plan(name, {}, STEP, topology).notes
        assert note.endswith("which NCCL does not support: TensorFlow's ring sums through host memory")
    for ops in ("hierarchical-copy", "reduction-to-one-device"):
        assert make_plan("tf-mirrored", {"cross_device_ops": ops}, STEP, SHARING_ONE).notes == ()
    assert make_plan("tf-central-storage", {}, STEP, SHARING_ONE).notes == ()


def test_options_have_their_words():
    with pytest.raises(StrategyError, match="communication must be one of auto, ring, nccl, got 'mpi'"):
        resolve("tf-multi-worker-mirrored", {"communication": "mpi"})


ON_TPUS = Topology(replicas_per_task=(4,), batch_size=8, device="tpu")


def test_on_tpus_gradients_are_summed_and_nothing_leaves_the_host():
    plan = make_plan("tf-tpu", {}, STEP, ON_TPUS)
    summed = {n.variable for n in plan.nodes if n.synchronizer == "cross-replica-sum"}
    assert summed == {"a", "b", "c"}
    assert {n.synchronizer for n in plan.nodes if n.variable not in summed} == {"none"}
    assert (plan.payload_bytes_per_step, plan.device, plan.notes) == (0, "tpu", ())


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        (REPLICAS, "has a form for tpu alone, got device cpu; leave it out, or take tpu"),
        (
            Topology(replicas_per_task=(4, 4), batch_size=8, device="tpu"),
            "drives the TPU devices of one host, got 2 workers; use workers=1",
        ),
        (
            Topology(replicas_per_task=(4,), batch_size=6, device="tpu"),
            "got 6 for 4 replicas; make batch_size a multiple",
        ),
    ],
)
def test_where_tpu_strategy_cannot_run_it_says_the_way_out(topology, message):
    with pytest.raises(UnsupportedError) as raised:
        make_plan("tf-tpu", {}, STEP, topology)
    assert str(raised.value).startswith("strategy 'tf-tpu': ")
    assert message in str(raised.value)


def test_on_tpus_rows_are_refused():
    with pytest.raises(UnsupportedError, match="'tf-tpu': variable 'rows' must have dense gradients"):
        make_plan("tf-tpu", {}, step_of(trainable("a", 3), trainable("rows", 8, sparse=True)), ON_TPUS)


def test_no_other_strategy_claims_a_form_for_tpus():
    forms = {s.name for s in STRATEGIES if s.lacks("tpu") is None}
    assert forms == {"tpu-replicate", "tf-tpu"}
    assert {s.name for s in STRATEGIES if s.refuses_to_run("tpu", 1) is None} == forms
    with pytest.raises(
        UnsupportedError, match="'all-reduce': has a form for cpu and gpu alone, got device tpu"
    ):
        make_plan("all-reduce", {}, STEP, ON_TPUS)
