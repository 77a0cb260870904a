""" """

from hypothesis import given
from hypothesis import strategies as st

from strategies.ir.graph import Function, FunctionRef, Graph, Node
from strategies.ir.random_ops import (
    draws,
    draws_from_op,
    draws_of,
    draws_statelessly,
    is_random_op,
    mix,
    moves_generator,
    reseed,
)

SEEDS = st.integers(0, (1 << 31) - 1)


def normal(name, seed=7, seed2=3):
    return Node(name=name, op="RandomStandardNormal", attrs={"seed": seed, "seed2": seed2})


def body(name, *nodes):
    return Function(name=name, inputs=(), outputs=(), nodes=nodes, results={})


def calling(name, *callees):
    return Node(name=name, op="If", attrs={"branches": tuple(FunctionRef(c) for c in callees)})


@given(SEEDS, st.text(), st.integers(1, 1000), st.integers(1, 1000))
def test_each_rank_has_its_own_seed_and_rank_0_the_captured_one(seed, name, rank, other):
    assert mix(seed, 0, name) == seed
    assert 0 <= mix(seed, rank, name) < 1 << 31
    assert mix(seed, rank, name) == mix(seed, rank, name)
    if rank != other:
        assert mix(seed, rank, name) != mix(seed, other, name)


@given(SEEDS, SEEDS, st.integers(1, 50))
def test_different_seeds_stay_different(seed, other, rank):
    assert (mix(seed, rank, "v") == mix(other, rank, "v")) == (seed == other)


def test_rank_0_and_graphs_without_seeds_come_back_as_they_are():
    seeded, free = Graph(nodes=(normal("n"),)), Graph(nodes=(normal("n", 0, 0),))
    assert reseed(seeded, 0) is seeded
    assert reseed(free, 3) is free


def test_an_op_with_seeds_that_draws_nothing_stays():
    compares = Node(name="hits", op="ComputeAccidentalHits", attrs={"seed": 0, "seed2": 7})
    step = Graph(nodes=(compares,))
    assert reseed(step, 1) is step


def test_ops_in_functions_that_functions_call_are_reseeded_under_new_names():
    graph = Graph(
        nodes=(calling("outer", "f", "pure"), normal("n")),
        functions={
            "f": body("f", calling("inner", "g")),
            "g": body("g", normal("m")),
            "pure": body("pure", Node(name="a", op="NoOp")),
        },
    )
    changed = reseed(graph, 2)
    assert changed.functions["g__rank_2"].nodes[0].attrs["seed2"] == mix(3, 2, "m")
    assert changed.functions["f__rank_2"].nodes[0].attrs["branches"] == (FunctionRef("g__rank_2"),)
    assert changed.nodes[0].attrs["branches"] == (FunctionRef("f__rank_2"), FunctionRef("pure"))
    assert changed.nodes[1].attrs["seed2"] == mix(3, 2, "n")
    assert changed.functions["g"] is graph.functions["g"]


def test_ops_that_share_a_seed_get_different_ones_by_name():
    changed = reseed(Graph(nodes=(normal("n"), normal("m"))), 1)
    assert changed.nodes[0].attrs["seed2"] != changed.nodes[1].attrs["seed2"]


def test_what_draws():
    graph = Graph(
        nodes=(calling("call", "f"), Node(name="n", op="MatMul")),
        functions={"f": body("f", Node(name="r", op="RngReadAndSkip"))},
    )
    call, product = graph.nodes
    assert draws(graph, call)
    assert moves_generator(graph, call)
    assert not draws(graph, product)
    assert not draws_statelessly(graph, call)
    assert draws_statelessly(graph, Node(name="s", op="StatelessRandomUniformV2"))
    assert not is_random_op("StatelessRandomUniformV2")
    assert is_random_op("RandomUniform")


def test_samplers_and_random_pools_draw_from_states_of_their_own():
    for op in ("LogUniformCandidateSampler", "SampleDistortedBoundingBoxV2", "FractionalMaxPool"):
        assert draws_from_op(Node(name="n", op=op))
        assert is_random_op(op)
    assert not draws_from_op(Node(name="n", op="FractionalMaxPoolGrad"))


def node(name, op, *inputs, **attrs):
    return Node(name=name, op=op, inputs=inputs, attrs=attrs)


def test_tensors_that_carry_draws_to_what_is_wanted():
    graph = Graph(
        nodes=(
            node("seed", "ReadVariableOp"),
            node("keys", "StatelessRandomGetKeyCounter", "seed"),
            node("drawn", "StatelessRandomUniformV2", "keys", "keys:1"),
            node("noise", "RandomStandardNormal"),
            node("loss", "Sum", "drawn", "noise"),
            node("elsewhere", "RandomUniform"),
            node("waits", "NoOp", "^elsewhere"),
            node("other", "Neg", "elsewhere"),
        )
    )
    draws = draws_of(graph, ["loss"])
    assert set(draws.tensors) == {"keys", "keys:1", "drawn", "noise"}
    assert draws.hidden == ()
    assert draws_of(graph, ["waits"]).tensors == ()


def test_what_a_function_draws_is_hidden():
    body = Function(name="f", inputs=(), outputs=(), nodes=(node("inner", "RandomUniform"),), results={})
    calls = node("call", "PartitionedCall", f=FunctionRef("f"))
    graph = Graph(nodes=(calls, node("loss", "Neg", "call")), functions={"f": body})
    assert draws_of(graph, ["loss"]).hidden == ("call",)


def test_what_a_loop_draws_is_hidden_and_what_comes_of_the_loop_is_not():
    graph = Graph(
        nodes=(
            node("begin", "Const"),
            node("enter", "Enter", "begin", frame_name=b"loop"),
            node("inside", "RandomUniform", "enter"),
            node("waiting", "RandomUniform", "^enter"),
            node("sum", "AddV2", "inside", "waiting"),
            node("exit", "Exit", "sum"),
            node("after", "RandomUniform", "exit"),
            node("loss", "Neg", "after"),
        )
    )
    draws = draws_of(graph, ["loss"])
    assert draws.hidden == ("inside", "waiting")
    assert draws.tensors == ("after",)
