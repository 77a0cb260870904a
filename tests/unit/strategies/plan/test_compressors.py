"""Choosing compressors by name, and the bytes that plans then predict; no TensorFlow."""

import pytest
from planning import slot, state, step_of, trainable

from strategies.errors import StrategyError
from strategies.plan.compressors import BY_NAME, PARAMS, describe, n_kept, payload_bytes
from strategies.plan.schema import Compression, Plan
from strategies.planner import payload_matrix
from strategies.registry import make_plan, resolve
from strategies.topology import Topology

TAKERS = ("ps", "ps-load-balancing", "all-reduce")
LARGE = step_of(trainable("large", 64, 96, readiness=0), slot("m/large", "large", 64, 96))
RAW = 4 * 64 * 96


def plan(strategy, step=LARGE, replicas_per_task=(1, 1), **params):
    topology = Topology(replicas_per_task=replicas_per_task, batch_size=24)
    return make_plan(strategy, params, step, topology)


def sent(strategy, replicas_per_task, **params):
    """[task i][task j] → bytes from i to j."""
    return payload_matrix(plan(strategy, replicas_per_task=replicas_per_task, **params), LARGE).sent


def chosen(result):
    return {node.variable: node.compressor for node in result.nodes if node.compressor is not None}


def test_the_table_says_what_each_takes():
    rows = {row["name"]: row for row in describe()}
    assert list(rows) == ["fp16", "fp16-ef", "bf16", "bf16-ef", "topk", "powersgd", "signsgd-ef", "qsgd"]
    assert {row["class"] for row in rows.values()} == {"bounded"}
    (ratio,) = rows["topk"]["params"]
    assert (ratio["name"], ratio["type"], ratio["default"]) == ("compressor_ratio", "float", 0.01)
    (rank,) = rows["powersgd"]["params"]
    assert (rank["name"], rank["type"], rank["default"]) == ("compressor_rank", "int", 4)
    assert {p["name"] for row in rows.values() for p in row["params"]} == {
        p.name for p in PARAMS if p.name != "compressor"
    }


@pytest.mark.parametrize("strategy", TAKERS)
@pytest.mark.parametrize("name", BY_NAME)
def test_a_strategy_with_a_compressor_is_bounded_and_says_its_options(strategy, name):
    resolved, values = resolve(strategy, {"compressor": name})
    assert resolved.strategy_class == "bounded"
    assert values["compressor"] == name
    for option in BY_NAME[name].params:
        assert values[f"compressor_{option.name}"] == option.default
    assert resolve(strategy, {})[0].strategy_class == "exact"
    assert plan(strategy, compressor=name).strategy_class == "bounded"


@pytest.mark.parametrize("none", [None, "none"])
def test_none_is_no_compressor(none):
    assert resolve("all-reduce", {"compressor": none}) == resolve("all-reduce")
    assert plan("all-reduce", compressor=none) == plan("all-reduce")


def test_either_spelling_of_a_name_resolves():
    assert resolve("ps", {"compressor": "fp16_ef"})[1]["compressor"] == "fp16-ef"


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"compressor": "fp61"}, "unknown compressor 'fp61'; did you mean 'fp16'?"),
        ({"compressor": "PowerSGD"}, "unknown compressor 'PowerSGD'; did you mean 'powersgd'?"),
        ({"compressor": "top-k"}, "unknown compressor 'top-k'; did you mean 'topk'?"),
        ({"compressor": "zip"}, "unknown compressor 'zip'; known are none, fp16,"),
        ({"compressor": 4}, "compressor must be str, got 4"),
        ({"compressor_rank": 2}, "compressor_rank needs a compressor, got none; add compressor=powersgd"),
        (
            {"compressor": "topk", "compressor_rank": 2},
            "compressor topk: takes no rank, got 2; drop it, it is for powersgd",
        ),
        (
            {"compressor": "topk", "compressor_ratio": 0.0},
            "compressor topk: ratio must be above 0 and at most 1",
        ),
        ({"compressor": "topk", "compressor_ratio": 1.5}, "got 1.5; leave it out for 0.01"),
        ({"compressor": "topk", "compressor_ratio": "x"}, "compressor_ratio must be float, got 'x'"),
        ({"compressor": "topk", "compressor_ratio": float("nan")}, "must be finite, got nan"),
        (
            {"compressor": "powersgd", "compressor_rank": 0},
            "compressor powersgd: rank must be at least 1, got 0",
        ),
        ({"compressor": "powersgd", "compressor_rank": 1.5}, "compressor_rank must be int, got 1.5"),
        ({"compressor": "qsgd", "compressor_levels": 128}, "must be at least 1 and at most 127, got 128"),
    ],
)
def test_bad_input_is_one_line_that_helps(params, message):
    with pytest.raises(StrategyError) as raised:
        resolve("all-reduce", params)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("strategy", ["single", "none"])
def test_what_sends_nothing_takes_no_compressor(strategy):
    with pytest.raises(StrategyError, match="unknown parameter 'compressor'"):
        resolve(strategy, {"compressor": "fp16"})


@pytest.mark.parametrize("strategy", TAKERS)
def test_only_dense_floating_gradients_that_gain_are_compressed(strategy):
    step = step_of(
        trainable("kernel", 64, 96, readiness=0),
        trainable("bias", 96, readiness=1),
        trainable("table", 500, 8, sparse=True, rows_per_example=3.0, readiness=2),
        trainable("counts", 64, 96, dtype="int32", readiness=3),
        trainable("scalar", readiness=4),
        trainable("empty", 0, 5, readiness=5),
        trainable("narrow", 64, 2, readiness=6),
        trainable("half", 64, 96, dtype="half", bytes=2 * 64 * 96, readiness=7),
        slot("m/kernel", "kernel", 64, 96),
        state("mean", 96),
    )
    assert set(chosen(plan(strategy, step, compressor="fp16"))) == {"kernel", "bias", "scalar", "narrow"}
    assert set(chosen(plan(strategy, step, compressor="powersgd"))) == {"kernel", "half"}
    assert set(chosen(plan(strategy, step, compressor="topk"))) == {"kernel", "bias", "narrow", "half"}


def test_between_workers_members_are_workers():
    kernel = step_of(trainable("kernel", 64, 96))
    for replicas_per_task in [(1, 1), (4, 3)]:
        planned = plan(
            "hierarchical-all-reduce", kernel, replicas_per_task=replicas_per_task, compressor="topk"
        )
        assert planned.payload_bytes_per_step == 2 * BYTES["topk"]


@pytest.mark.parametrize("strategy", ["hierarchical-all-reduce", "ps", "ps-load-balancing"])
def test_a_lone_worker_tells_nobody_anything_that_could_be_smaller(strategy):
    kernel = step_of(trainable("kernel", 64, 96))
    assert not chosen(plan(strategy, kernel, replicas_per_task=(3,), compressor="fp16"))
    assert chosen(plan(strategy, kernel, replicas_per_task=(3, 1), compressor="fp16"))


def test_a_convolution_is_a_matrix_with_its_filters_in_columns():
    kernel = step_of(trainable("kernel", 3, 3, 16, 32))
    planned = plan("all-reduce", kernel, compressor="powersgd", compressor_rank=2)
    assert planned.payload_bytes_per_step == 2 * (3 * 3 * 16 + 32) * 2 * 4


BYTES = {
    "fp16": RAW // 2,
    "bf16-ef": RAW // 2,
    "topk": 62 * 8,
    "powersgd": (64 + 96) * 4 * 4,
    "signsgd-ef": 4 + 64 * 96 // 8,
    "qsgd": 12 * (512 + 4),
}


@pytest.mark.parametrize("name", BYTES)
@pytest.mark.parametrize("workers", [2, 3])
def test_workers_push_encoded_gradients_and_pull_whole_variables(name, workers):
    first, *others = sent("ps", (1,) * workers, compressor=name)
    assert first[1:] == (RAW,) * (workers - 1)
    assert [row[0] for row in others] == [BYTES[name]] * (workers - 1)


@pytest.mark.parametrize("name", ["fp16", "bf16-ef", "powersgd"])
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_what_is_added_up_on_its_way_goes_around_the_ring(name, workers):
    matrix = sent("all-reduce", (1,) * workers, compressor=name)
    assert matrix[0][1] == round(2 * (workers - 1) / workers * BYTES[name])


@pytest.mark.parametrize("name", ["topk", "signsgd-ef", "qsgd"])
@pytest.mark.parametrize("workers", [2, 3, 4])
def test_what_is_gathered_reaches_every_member(name, workers):
    matrix = sent("all-reduce", (1,) * workers, compressor=name)
    assert matrix[0][1] == (workers - 1) * BYTES[name]


@pytest.mark.parametrize(("strategy", "n_of_first"), [("all-reduce", 2), ("hierarchical-all-reduce", 1)])
def test_each_replica_encodes_unless_one_does_for_its_worker(strategy, n_of_first):
    matrix = sent(strategy, (2, 1), compressor="topk")
    assert matrix == ((0, n_of_first * BYTES["topk"]), (BYTES["topk"], 0))


def test_a_gather_among_many_that_would_be_larger_is_not_made():
    many = {"replicas_per_task": (1,) * 8, "compressor": "qsgd"}
    planned = plan("all-reduce", **many)
    assert not chosen(planned)
    assert planned.traffic == plan("all-reduce", replicas_per_task=(1,) * 8).traffic
    assert planned.notes == ("qsgd: no gradient gets smaller here, all are sent uncompressed",)
    assert chosen(plan("ps", **many))


def test_a_plan_says_what_it_does_to_each_gradient_and_survives_json():
    planned = plan("all-reduce", compressor="topk", compressor_ratio=0.5)
    assert chosen(planned) == {}
    planned = plan("all-reduce", compressor="topk", compressor_ratio=0.25)
    assert chosen(planned) == {"large": Compression(name="topk", ratio=0.25)}
    assert planned.strategy_params["compressor_ratio"] == 0.25
    assert Plan.model_validate_json(planned.model_dump_json()) == planned


def test_one_replica_compresses_nothing():
    planned = plan("all-reduce", replicas_per_task=(1,), compressor="topk")
    assert not chosen(planned)
    assert planned.notes == (
        "one replica: all-reduce leaves the captured graph unchanged apart from its updates",
    )


@pytest.mark.parametrize(("n", "ratio", "k"), [(100, 0.07, 7), (100, 0.071, 8), (3, 0.01, 1), (5, 1.0, 5)])
def test_how_many_values_top_k_keeps(n, ratio, k):
    assert n_kept(n, ratio) == k


def test_doubles_take_two_words_each():
    assert payload_bytes((10, 10), "double", Compression(name="topk", ratio=0.1)) == 10 * (8 + 4)
    assert payload_bytes((64,), "double", Compression(name="signsgd-ef")) == 8 + 8
