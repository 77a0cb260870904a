import subprocess
import sys

import pytest
from planning import slot, state, step_of, trainable

from strategies.errors import StrategyError
from strategies.plan import Plan
from strategies.registry import describe, make_plan, resolve
from strategies.topology import Topology

STEP = step_of(trainable("a", 3), slot("a/m", "a", 3), state("mean", 2))
TWO = Topology(replicas_per_task=(1, 1), batch_size=4)


def test_names_are_kebab_case_and_described():
    rows = describe()
    by_name = {row["name"]: row for row in rows}
    assert [*by_name][:5] == ["single", "none", "ps", "ps-load-balancing", "all-reduce"]
    assert {"tf-one-device", "tf-mirrored", "tf-multi-worker-mirrored"} < set(by_name)
    assert by_name["none"]["class"] == "control"
    assert by_name["all-reduce"]["params"][:2] == [
        {"name": "chunk_size", "type": "int", "default": 128},
        {"name": "bucket_bytes", "type": "int", "default": None},
    ]


def test_either_spelling_resolves():
    assert resolve("ps_load_balancing")[0].name == "ps-load-balancing"
    assert resolve("all-reduce", {"chunk-size": 3})[1].items() >= {"chunk_size": 3, "bucket_bytes": None}.items()
    assert resolve("all-reduce")[1].items() >= {"chunk_size": 128, "bucket_bytes": None}.items()
    assert resolve("all-reduce", {"bucket_bytes": None, "chunk_size": 2})[1]["chunk_size"] == 2


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("all-reduse", {}, "strategy 'all-reduse': unknown name; did you mean 'all-reduce'"),
        ("qqq", {}, "unknown name; known are single, none, ps, ps-load-balancing, all-reduce, "),
        ("all-reduce", {"chunksize": 1}, "unknown parameter 'chunksize'; did you mean 'chunk_size'"),
        ("single", {"sync": True}, "unknown parameter 'sync'; it takes no parameters"),
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


def test_a_plan_survives_json():
    plan = make_plan("all-reduce", {"bucket_bytes": 9}, STEP, TWO)
    assert Plan.model_validate_json(plan.model_dump_json()) == plan
    assert plan.strategy_params.items() >= {"chunk_size": 128, "bucket_bytes": 9}.items()
    assert (plan.replicas_per_task, plan.batch_size, plan.workload) == ((1, 1), 4, "hand-made")
    assert plan.notes == ()


@pytest.mark.parametrize("name", ["none", "ps", "ps-load-balancing", "all-reduce"])
def test_one_replica_has_nothing_to_synchronise_and_the_plan_says_so(name):
    plan = make_plan(name, {}, STEP, Topology(replicas_per_task=(1,), batch_size=4))
    assert plan.notes == (f"one replica: {name} leaves the captured graph unchanged",)
    assert {node.synchronizer for node in plan.nodes} == {"none"}
    assert plan.payload_bytes_per_step == 0


def test_single_is_for_one_replica():
    assert make_plan("single", {}, STEP, Topology(replicas_per_task=(1,), batch_size=4)).notes == ()
    with pytest.raises(StrategyError, match="runs one replica, got 2; use workers=1 and replicas=1"):
        make_plan("single", {}, STEP, TWO)


def test_planning_needs_no_tensorflow():
    program = (
        "import sys, strategies.registry, strategies.cost, strategies.topology, harness.equivalence;"
        "sys.exit(any(m in sys.modules for m in ('tensorflow', 'keras', 'ray')))"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
