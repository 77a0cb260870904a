"""Strategies by name: what they are given, and the combinations of their tunable knobs."""

import subprocess
import sys
from dataclasses import replace

import pytest
from planning import slot, state, step_of, trainable

from strategies.errors import StrategyError, UnsupportedError
from strategies.params import Param
from strategies.plan.schema import Plan, StatisticSummary
from strategies.plan.strategy import Strategy, independent
from strategies.planner import payload_matrix, settled
from strategies.registry import MOST_COMBINATIONS, STRATEGIES, alternatives, describe, make_plan, resolve
from strategies.topology import Topology

STEP = step_of(trainable("a", 3), slot("a/m", "a", 3), state("mean", 2))
TWO = Topology(replicas_per_task=(1, 1), batch_size=4)


def test_names_are_kebab_case_and_described():
    rows = describe()
    by_name = {row["name"]: row for row in rows}
    assert [*by_name][:5] == ["single", "none", "ps", "ps-load-balancing", "all-reduce"]
    assert {"tf-one-device", "tf-mirrored", "tf-central-storage", "tf-multi-worker-mirrored"} < set(by_name)
    assert by_name["none"]["class"] == "control"
    proxy, sync = by_name["ps"]["params"][:2]
    assert proxy.pop("summary")
    assert proxy == {
        "name": "local_proxy_variable",
        "type": "bool",
        "default": False,
        "unit": "",
        "tunable": [False, True],
    }
    assert (sync["name"], sync["default"], "tunable" in sync) == ("sync", True, False)
    assert by_name["fully-sharded"]["usual_name"] == "FSDP, ZeRO-3"


def test_lists_say_all_in_100_columns():
    for row in describe():
        assert len(row["summary"]) <= 98, row["name"]
        assert len(row["usual_name"]) <= 31, row["name"]
        for param in row["params"]:
            assert 0 < len(param["summary"]) <= 75, (row["name"], param["name"])


def test_either_spelling_resolves():
    assert resolve("ps_load_balancing")[0].name == "ps-load-balancing"
    assert (
        resolve("all-reduce", {"chunk-size": 3})[1].items() >= {"chunk_size": 3, "bucket_bytes": None}.items()
    )
    assert resolve("all-reduce")[1].items() >= {"chunk_size": 128, "bucket_bytes": None}.items()
    assert resolve("all-reduce", {"bucket_bytes": None, "chunk_size": 2})[1]["chunk_size"] == 2


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("all-reduse", {}, "strategy 'all-reduse': unknown name; did you mean 'all-reduce'"),
        ("qqq", {}, "unknown name; known are single, none, ps, ps-load-balancing, all-reduce, "),
        ("all-reduce", {"ratio": 0.1}, "unknown parameter 'ratio'; did you mean 'compressor_ratio'"),
        ("all-reduce", {"chunksize": 1}, "unknown parameter 'chunksize'; did you mean 'chunk_size'"),
        ("single", {"sync": True}, "unknown parameter 'sync'; known are fused_update"),
        ("ps", {"sync": 1}, "sync must be true or false, got 1; leave it out for true"),
        ("ps", {"staleness": -1}, "staleness must be at least 0, got -1"),
        (
            "ps",
            {"staleness": 2, "sync": False},
            "staleness=2 needs sync=true, got sync=false; drop one of them",
        ),
        ("ps-load-balancing", {"backup": 1, "sync": False}, "backup=1 needs sync=true, got sync=false; drop"),
        ("ps", {"backup": 1, "staleness": 2}, "backup=1 needs staleness=0, got staleness=2; drop one"),
        (
            "ps",
            {"accumulate": 2, "sync": False},
            "needs updates that wait for all workers, got sync=false; drop",
        ),
        (
            "ps",
            {"accumulate": 2, "staleness": 1},
            "accumulate=2 needs updates that wait for all workers, got stal",
        ),
        (
            "sharded-ps",
            {"accumulate": 2, "backup": 1},
            "accumulate=2 needs updates that wait for all workers, got",
        ),
        ("all-reduce", {"accumulate": 0}, "accumulate must be at least 1, got 0; leave it out for 1"),
        (
            "tpu-replicate",
            {"steps_per_loop": 10**9},
            "steps_per_loop must be at least 1 and at most 10000, got 1000000000; leave it out for 10",
        ),
        ("single", {"accumulate": 2}, "unknown parameter 'accumulate'; known are fused_update"),
        ("tf-mirrored", {"accumulate": 2}, "unknown parameter 'accumulate'"),
        (
            "ps",
            {"sync_batch_norm": True, "sync": False},
            "sync_batch_norm=true needs updates that wait for all workers, got sync=false; drop one of them",
        ),
        (
            "ps",
            {"sync_batch_norm": True, "staleness": 1},
            "sync_batch_norm=true needs updates that wait for all workers, got staleness=1",
        ),
        (
            "sharded-ps",
            {"sync_batch_norm": True, "backup": 1},
            "sync_batch_norm=true needs updates that wait for all workers, got backup=1",
        ),
        (
            "all-reduce",
            {"sync_batch_norm": True, "accumulate": 2},
            "sync_batch_norm=true needs all examples at once, got accumulate=2; drop one of them",
        ),
        (
            "all-reduce",
            {"sync_batch_norm": 1},
            "sync_batch_norm must be true or false, got 1; leave it out for false",
        ),
        ("local-sgd", {"sync_batch_norm": True}, "unknown parameter 'sync_batch_norm'"),
        ("none", {"sync_batch_norm": True}, "unknown parameter 'sync_batch_norm'; known are fused_update"),
        ("tf-mirrored", {"sync_batch_norm": True}, "unknown parameter 'sync_batch_norm'"),
        ("local-sgd", {"period": 0}, "period must be at least 1, got 0; leave it out for 8"),
        ("local-sgd", {"compressor": "fp16"}, "unknown parameter 'compressor'"),
        ("all-reduce", {"chunk_size": "8"}, "chunk_size must be int, got '8'"),
        ("all-reduce", {"chunk_size": True}, "chunk_size must be int, got True"),
        ("all-reduce", {"chunk_size": 1.0}, "chunk_size must be int, got 1.0"),
        ("all-reduce", {"chunk_size": None}, "chunk_size must be int, got None"),
        ("all-reduce", {"chunk_size": 0}, "chunk_size must be at least 1, got 0"),
        ("all-reduce", {"bucket_bytes": -5}, "bucket_bytes must be at least 1, got -5"),
        (
            "all-reduce",
            {"chunk_size": 1, "bucket_bytes": 9},
            "takes chunk_size or bucket_bytes, got both; drop one",
        ),
    ],
)
def test_bad_input_is_one_line_that_helps(name, params, message):
    with pytest.raises(StrategyError) as raised:
        resolve(name, params)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


def test_knobs_settle_the_class_of_a_parameter_server():
    for params in ({"sync": False}, {"staleness": 1}, {"backup": 1}):
        assert resolve("ps", params)[0].strategy_class == "statistical"
        assert make_plan("ps", params, STEP, TWO).strategy_class == "statistical"
    assert resolve("ps", {"local_proxy_variable": True})[0].strategy_class == "exact"
    assert resolve("ps")[0].strategy_class == "exact"


@pytest.mark.parametrize("backup", [2, 5])
def test_somebody_is_waited_for(backup):
    message = f"backup={backup} must be less than the number of workers, got workers=2; lower backup or add"
    with pytest.raises(StrategyError, match=message):
        make_plan("ps", {"backup": backup}, STEP, TWO)


def test_a_plan_survives_json():
    plan = make_plan("all-reduce", {"bucket_bytes": 9}, STEP, TWO)
    assert Plan.model_validate_json(plan.model_dump_json()) == plan
    assert plan.strategy_params.items() >= {"chunk_size": 128, "bucket_bytes": 9}.items()
    assert (plan.replicas_per_task, plan.batch_size, plan.workload) == ((1, 1), 4, "hand-made")
    assert plan.notes == ()


@pytest.mark.parametrize("name", ["none", "ps", "ps-load-balancing", "all-reduce"])
def test_one_replica_has_nothing_to_synchronise_and_the_plan_says_so(name):
    plan = make_plan(name, {}, STEP, Topology(replicas_per_task=(1,), batch_size=4))
    assert plan.notes == (f"one replica: {name} leaves the captured graph unchanged apart from its updates",)
    assert {node.synchronizer for node in plan.nodes} == {"none"}
    assert plan.payload_bytes_per_step == 0


def test_single_is_for_one_replica():
    assert make_plan("single", {}, STEP, Topology(replicas_per_task=(1,), batch_size=4)).notes == ()
    with pytest.raises(StrategyError, match="runs one replica, got 2; use workers=1 and replicas=1"):
        make_plan("single", {}, STEP, TWO)


@pytest.mark.parametrize("name", ["ps", "all-reduce", "partitioned-all-reduce"])
def test_micro_batches_are_of_replicas_that_synchronise(name):
    plan = make_plan(name, {"accumulate": 2}, STEP, TWO)
    assert plan.strategy_class == "exact"
    assert plan.traffic == make_plan(name, {}, STEP, TWO).traffic
    with pytest.raises(
        StrategyError, match=r"batch_size: .* got 4 examples for 2 replicas with accumulate=3"
    ):
        make_plan(name, {"accumulate": 3}, STEP, TWO)
    with pytest.raises(
        UnsupportedError, match="accumulate=2 needs two replicas or more, got one, whose step"
    ):
        make_plan(name, {"accumulate": 2}, STEP, Topology(replicas_per_task=(1,), batch_size=4))


NORMALISED = STEP.model_copy(update={"statistics": (StatisticSummary(layer="norm", bytes=48),)})


def test_statistics_of_the_whole_batch_are_taken_by_whom_micro_batches_are_and_by_cores():
    takers = {
        knob: {s.name for s in STRATEGIES if any(p.name == knob for p in s.params)}
        for knob in ("accumulate", "sync_batch_norm")
    }
    assert len(takers["accumulate"]) > 5
    # A computation for cores takes its examples at once.
    assert takers["sync_batch_norm"] == takers["accumulate"] | {"tpu-replicate"}


def test_statistics_of_the_whole_batch_travel_in_a_ring_of_workers():
    plain, synced = (
        make_plan("ps", {"sync_batch_norm": synced}, NORMALISED, TWO) for synced in (False, True)
    )
    assert plain.statistics == ()
    assert synced.statistics == NORMALISED.statistics
    added = [
        [b - a for a, b in zip(*rows, strict=True)]
        for rows in zip(*(payload_matrix(plan, NORMALISED).sent for plan in (plain, synced)), strict=True)
    ]
    assert added == [[0, 48], [48, 0]]


def test_a_layer_whose_statistics_cannot_be_those_of_the_whole_batch():
    reason = "has a mask; normalise without one"
    masked = NORMALISED.model_copy(update={"own_statistics": {"norm": reason}})
    assert make_plan("ps", {}, masked, TWO).statistics == ()
    with pytest.raises(
        UnsupportedError,
        match=r"^strategy 'ps': sync_batch_norm=true: layer 'norm' has a mask; normalise without one, "
        "or drop sync_batch_norm$",
    ):
        make_plan("ps", {"sync_batch_norm": True}, masked, TWO)
    # One replica has all examples.
    alone = Topology(replicas_per_task=(1,), batch_size=4)
    assert make_plan("ps", {"sync_batch_norm": True}, masked, alone).statistics == ()


def test_planning_needs_no_tensorflow():
    program = (
        "import sys, strategies.registry, strategies.plan.payload, strategies.topology\n"
        "import harness.verification.reference\n"
        "sys.exit(any(m in sys.modules for m in ('tensorflow', 'keras', 'ray')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0


SIZE = Param(name="size", type=int, default=8, tunable=(2, 8, 32))
EAGER = Param(name="eager", type=bool, default=False, tunable=(False, True))
OTHER = Param(name="rate", type=float, default=0.5)


def strategy(*params: Param) -> Strategy:
    return Strategy(name="mine", summary="s", strategy_class="exact", layout=independent, params=params)


def test_every_combination_of_what_is_declared_and_not_given():
    mine = strategy(SIZE, EAGER, OTHER)
    assert alternatives(mine, {}) == (
        {"eager": True},
        {"size": 2},
        {"size": 2, "eager": True},
        {"size": 32},
        {"size": 32, "eager": True},
    )
    assert alternatives(mine, {"size": 8, "rate": 0.1}) == ({"size": 8, "rate": 0.1, "eager": True},)
    assert alternatives(mine, {"size": 2, "eager": True}) == ()
    assert alternatives(strategy(OTHER), {}) == ()


def test_knobs_of_which_one_can_be_given_are_not_given_together():
    mine, _ = resolve("all-reduce", {"transport": "ring"})
    plans = alternatives(mine, {"transport": "ring"})
    assert {tuple(sorted(params)) for params in plans} == {
        ("chunk_size", "transport"),
        ("bucket_bytes", "transport"),
    }
    assert {params["transport"] for params in plans} == {"ring"}


def test_what_changes_the_class_is_no_alternative():
    sync = Param(name="sync", type=bool, default=True, tunable=(True, False))
    ps, _ = resolve("ps")
    params = (sync, *(p for p in ps.params if p.name != "sync"))
    assert alternatives(replace(ps, params=params), {}) == ({"local_proxy_variable": True},)


def test_too_many_are_refused_with_the_way_out():
    many = [Param(name=f"k{n}", type=int, default=0, tunable=tuple(range(11))) for n in range(3)]
    with pytest.raises(StrategyError, match=rf"at most {MOST_COMBINATIONS}, got 1331 of k0, k1, k2; give"):
        alternatives(strategy(*many), {})


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.name)
def test_what_strategies_declare_they_take(strategy):
    for param in strategy.params:
        for value in param.tunable:
            assert param.read(value) == value
    changes = alternatives(strategy, {})
    assert bool(changes) == any(param.tunable for param in strategy.params)
    for params in changes:
        assert settled(strategy, params)[0].strategy_class == strategy.strategy_class
    assert not changes or strategy.runner == "graph", "its plan could not be run again"


@pytest.mark.parametrize(
    ("usual", "here"), [("FSDP", "fully-sharded"), ("zero_2", "sharded-update"), ("Horovod", "all-reduce")]
)
def test_a_usual_name_is_answered_with_the_name_here(usual: str, here: str) -> None:
    with pytest.raises(StrategyError, match=rf"here it is {here}$"):
        resolve(usual)
