"""TPU slices by name, collectives on their tori, and what plans cost on them."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from planning import slot, state, step_of, trainable
from scipy.optimize import linprog

from strategies.errors import StrategyError
from strategies.registry import make_plan
from strategies.topology import Topology
from strategies.tpu_slices import GENERATIONS, Torus, parse_slice, slice_cost


@pytest.mark.parametrize(
    ("name", "wrapped"),
    [
        # Slices smaller than a cube have no links around (docs.cloud.google.com/tpu/docs/v5p).
        *(
            (f"{g}:{shape}", (False,) * 3)
            for g in ("v4", "v5p", "v7x")
            for shape in ("2x2x1", "2x2x4", "2x4x4")
        ),
        *(
            (f"{g}:{shape}", (True,) * 3)
            for g in ("v4", "v5p", "v7x")
            for shape in ("4x4x4", "4x4x8", "8x8x12")
        ),
        *((f"{g}:{shape}", (False, False)) for g in ("v5e", "v6e") for shape in ("2x4", "4x4", "8x8")),
        *((f"{g}:8x16", (False, True)) for g in ("v2", "v5e", "v6e")),
        *((f"{g}:16x16", (True, True)) for g in ("v2", "v5e", "v6e")),
        ("v3:16x16", (False, False)),
        ("v3:16x32", (False, True)),
        ("v3:32x32", (True, True)),
    ],
)
def test_which_axes_wrap_around(name, wrapped):
    assert parse_slice(name).torus.wrapped == wrapped


@pytest.mark.parametrize(
    ("name", "n_chips", "n_devices", "links_per_chip"),
    [
        ("v2:2x2", 4, 8, 4),
        ("v3:4x8", 32, 64, 4),
        ("v4:2x2x2", 8, 8, 6),
        ("v5p:4x4x4", 64, 64, 6),
        ("v5e:1x1", 1, 1, 4),
        ("v5litepod:2x4", 8, 8, 4),
        ("v6e:16x16", 256, 256, 4),
        ("v7x:2x2x1", 4, 8, 6),
    ],
)
def test_chips_devices_and_links(name, n_chips, n_devices, links_per_chip):
    parsed = parse_slice(name)
    assert (parsed.torus.n_chips, parsed.n_devices) == (n_chips, n_devices)
    assert parsed.generation.links_per_chip == links_per_chip


@pytest.mark.parametrize(
    ("name", "published_bytes_per_s"),
    [("v3:32x32", 340e12), ("v5e:16x16", 51.2e12), ("v6e:16x16", 102.4e12)],
)
def test_links_add_up_to_the_published_bandwidth_of_a_pod(name, published_bytes_per_s):
    """All-reduce bandwidth per pod, as Google's page of the generation has it: all links, one way."""
    pod = parse_slice(name).torus
    assert pod.n_chips * pod.links_in_use * pod.link_bytes_per_s == pytest.approx(
        published_bytes_per_s, rel=0.02
    )


def test_google_s_names_are_known_too():
    assert parse_slice("v5e:4x4") == parse_slice("v5litepod:4x4")
    assert parse_slice("tpu7x:4x4x4") == parse_slice("v7x:4x4x4")


def test_axes_may_be_named_in_any_order():
    assert parse_slice("v4:8x4x4").torus.all_reduce_s(1e9) == parse_slice("v4:4x4x8").torus.all_reduce_s(1e9)
    assert parse_slice("v6e:16x8").torus.wrapped == (True, False)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("", "must be ACCELERATOR:TOPOLOGY"),
        ("v4", "must be ACCELERATOR:TOPOLOGY"),
        ("v4:", "must be ACCELERATOR:TOPOLOGY"),
        ("v4:8", "must be ACCELERATOR:TOPOLOGY"),
        ("v4:2x2x0", "must be ACCELERATOR:TOPOLOGY"),
        ("v4:2x2x2x2", "must be ACCELERATOR:TOPOLOGY"),
        ("v4:2×2×2", "must be ACCELERATOR:TOPOLOGY"),
        ("v4:2x2x2\n", "must be ACCELERATOR:TOPOLOGY"),
        ("v4:99999x4x4", "must be ACCELERATOR:TOPOLOGY"),
        ("v44:2x2x2", "generation 'v44' is not known; did you mean 'v4'?"),
        ("gpu:2x2", "generation 'gpu' is not known; "),
        (
            "v4:3x3x3",
            "must have a shape that v4 comes in, got 3x3x3; use 2x2x1, 2x2x2, 2x2x4, 2x4x4, or multi",
        ),
        ("v4:4x4", "must have a shape that v4 comes in, got 4x4; use"),
        ("v4:16x16x20", "must have a shape that v4 comes in, got 16x16x20; use"),
        (
            "v5e:3x3",
            "must have a shape that v5e comes in, got 3x3; use 1x1, 2x2, 2x4, 2x8, 4x4, 4x8, 8x8, 8x16 or",
        ),
        ("v5e:4x4x4", "must have a shape that v5e comes in, got 4x4x4; use"),
        ("v2:16x32", "must have a shape that v2 comes in, got 16x32; use 2x2, 4x4, 4x8, 8x8, 8x16 or 16x16"),
    ],
)
def test_what_is_no_slice_is_refused(name, message):
    with pytest.raises(StrategyError) as refused:
        parse_slice(name)
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


def test_each_device_needs_a_replica():
    parse_slice("v3:2x2").require_replicas(8)
    with pytest.raises(
        StrategyError, match="got 8 of v3:2x2 for 4; give --workers and --replicas whose product is 8"
    ):
        parse_slice("v3:2x2").require_replicas(4)


def test_every_figure_names_its_source():
    for generation in GENERATIONS.values():
        assert "doi:" in generation.source or "arXiv:" in generation.source or "https://" in generation.source


B = 50e9
S = 1e9


def torus(*dims, wraps=True):
    wrapped = (wraps,) * len(dims) if isinstance(wraps, bool) else wraps
    return Torus(dims=dims, wrapped=wrapped, link_bytes_per_s=B)


axes = st.lists(st.tuples(st.integers(1, 32), st.booleans()), min_size=1, max_size=3)
payloads = st.integers(0, 10**12)


def of_axes(drawn):
    dims, wrapped = zip(*drawn, strict=True)
    return torus(*dims, wraps=wrapped)


@pytest.mark.parametrize("n", [3, 4, 16])
def test_a_ring_sends_2_n_minus_1_over_n(n):
    both_ways = 2 * B
    assert torus(n).all_reduce_s(S) == pytest.approx(2 * (n - 1) / n * S / both_ways)
    assert torus(n).reduce_scatter_s(S) == torus(n).all_gather_s(S) == torus(n).all_reduce_s(S) / 2


@pytest.mark.parametrize("n", [2, 4, 7])
def test_a_line_takes_twice_as_long_as_a_ring(n):
    assert torus(n, wraps=False).all_reduce_s(S) == 2 * torus(n).all_reduce_s(S)


def test_a_square_is_twice_as_fast_as_a_ring_of_as_many_chips():
    assert torus(16, 16).all_reduce_s(S) == torus(256).all_reduce_s(S) / 2
    assert torus(4, 4, 4).all_reduce_s(S) == pytest.approx(torus(64).all_reduce_s(S) / 3)


@pytest.mark.parametrize(
    ("result", "expected_s"),
    [
        # 7/8 of it over the three links of each chip.
        (torus(2, 2, 2, wraps=False), 2 * (7 / 8) * S / (3 * B)),
        (torus(2, 2, 1, wraps=False), 2 * (3 / 4) * S / (2 * B)),
        (torus(4, 4, 4), 2 * (63 / 64) * S / (6 * B)),
        # A ring of 16 has two links, a line of 8 one.
        (torus(8, 16, wraps=(False, True)), 2 * (127 / 128) * S / (3 * B)),
        (torus(1, 1, wraps=False), 0.0),
    ],
)
def test_hand_computed(result, expected_s):
    assert result.all_reduce_s(S) == pytest.approx(expected_s)


@given(axes, payloads, payloads)
def test_more_bytes_never_take_less(drawn, one, other):
    torus = of_axes(drawn)
    few, many = sorted((one, other))
    assert torus.all_reduce_s(few) <= torus.all_reduce_s(many)
    assert torus.all_gather_s(few) <= torus.all_gather_s(many)


@given(axes, payloads)
def test_no_faster_than_all_links_of_a_chip_allow(drawn, n_bytes):
    torus = of_axes(drawn)
    n = torus.n_chips
    least_s = (n - 1) / n * n_bytes / (2 * len(drawn) * B)
    assert torus.reduce_scatter_s(n_bytes) >= least_s * (1 - 1e-12)


@given(axes, payloads, st.randoms(use_true_random=False))
def test_the_order_of_axes_does_not_matter(drawn, n_bytes, random):
    shuffled = random.sample(drawn, len(drawn))
    assert of_axes(shuffled).all_reduce_s(n_bytes) == of_axes(drawn).all_reduce_s(n_bytes)


@given(axes, payloads)
def test_a_link_more_never_slows(drawn, n_bytes):
    ringed = torus(*(length for length, _ in drawn))
    assert ringed.all_reduce_s(n_bytes) <= of_axes(drawn).all_reduce_s(n_bytes)


@pytest.mark.parametrize(
    "result",
    [torus(2, 2, 4, wraps=False), torus(8, 5, wraps=(False, True)), torus(4, 3, 5), torus(6), torus(1, 4)],
)
def test_links_are_those_of_the_graph(result):
    chips = list(itertools.product(*map(range, result.dims)))
    links = {chip: set(_neighbours(chip, result)) for chip in chips}
    assert result.links_in_use == min(map(len, links.values()))


def _neighbours(chip, result):
    for axis, (length, wraps) in enumerate(zip(result.dims, result.wrapped, strict=True)):
        for step in (-1, 1):
            place = chip[axis] + step
            if length > 1 and (wraps or 0 <= place < length):
                yield (*chip[:axis], place % length, *chip[axis + 1 :])


@pytest.mark.parametrize(
    ("accelerator", "dims"),
    [
        *((name, dims) for name, generation in GENERATIONS.items() for dims in generation.shapes),
        *(("v4", dims) for dims in [(4, 4, 4), (4, 4, 8), (4, 8, 16), (4, 4, 256), (8, 8, 12), (16, 16, 16)]),
    ],
)
def test_shares_are_there_for_which_all_axes_are_done_together(accelerator, dims):
    """The least time of shares of any sizes, one for each order of the axes, is the closed form."""
    shape = torus(*dims, wraps=GENERATIONS[accelerator].wrapped(dims))
    n_axes = len(dims)
    orders = list(itertools.permutations(range(n_axes)))
    # Busy time of an axis for each share of one byte; the last column is the time of all.
    busy = [[_busy_s(shape, order, axis) for order in orders] + [-1.0] for axis in range(n_axes)]
    actual = linprog(
        c=[0.0] * len(orders) + [1.0],
        A_ub=busy,
        b_ub=[0.0] * n_axes,
        A_eq=[[1.0] * len(orders) + [0.0]],
        b_eq=[1.0],
    )
    assert actual.fun == pytest.approx(shape.reduce_scatter_s(1.0) * B, rel=1e-6)


def _busy_s(result, order, axis):
    """Seconds × b that a share of a byte keeps the links of an end chip along an axis busy."""
    left = 1 / math.prod(result.dims[before] for before in order[: order.index(axis)])
    length, wraps = result.dims[axis], result.wrapped[axis]
    return left * (length - 1) / length / (1 + wraps)


EIGHT = parse_slice("v4:2x2x2")
N, LINKS_BYTES_PER_S = 8, 3 * 50e9
_CUT = {"partitionable_axes": (0,), "apart": True, "apart_axes": (0,)}
DENSE = step_of(
    trainable("kernel", 1024, 64, readiness=1, **_CUT),
    trainable("other", 2048, 8, readiness=0, **_CUT),
    slot("kernel/m", "kernel", 1024, 64),
    slot("other/m", "other", 2048, 8),
)
GRADIENT_BYTES = 4 * (1024 * 64 + 2048 * 8)


def cost(strategy, step=DENSE, on=EIGHT, replicas_per_task=(4, 4), **params):
    plan = make_plan(strategy, params, step, Topology(replicas_per_task=replicas_per_task, batch_size=64))
    return slice_cost(on, plan, step)


@pytest.mark.parametrize("strategy", ["all-reduce", "hierarchical-all-reduce"])
def test_an_all_reduce_takes_two_halves(strategy):
    slice_cost = cost(strategy)
    assert slice_cost.collectives.all_reduce_bytes == GRADIENT_BYTES
    assert slice_cost.all_reduce_s == pytest.approx(2 * (N - 1) / N * GRADIENT_BYTES / LINKS_BYTES_PER_S)
    assert (slice_cost.reduce_scatter_s, slice_cost.all_gather_s) == (None, None)
    assert slice_cost.total_s == slice_cost.all_reduce_s


@pytest.mark.parametrize("strategy", ["sharded-update", "fully-sharded"])
def test_a_sharded_update_takes_as_long_as_an_all_reduce(strategy):
    """The same bytes on the links; what it saves is memory."""
    slice_cost = cost(strategy, min_bytes=1)
    assert slice_cost.all_reduce_s is None
    assert (slice_cost.collectives.reduce_scatter_bytes, slice_cost.collectives.all_gather_bytes) == (
        GRADIENT_BYTES,
        GRADIENT_BYTES,
    )
    assert (
        slice_cost.reduce_scatter_s
        == slice_cost.all_gather_s
        == pytest.approx((N - 1) / N * GRADIENT_BYTES / LINKS_BYTES_PER_S)
    )
    assert slice_cost.total_s == pytest.approx(cost("all-reduce").total_s)


def test_a_sharded_update_keeps_an_nth_of_the_slots():
    topology = Topology(replicas_per_task=(4, 4), batch_size=64)
    all_slots, own_slots = (
        make_plan(name, params, DENSE, topology).worker_bytes - GRADIENT_BYTES
        for name, params in (("all-reduce", {}), ("sharded-update", {"min_bytes": 1}))
    )
    assert (all_slots, own_slots) == (GRADIENT_BYTES, GRADIENT_BYTES // N)


def test_gradients_that_others_read_are_summed_for_all():
    step = step_of(*(v.model_copy(update={"gradient_shared": True}) for v in DENSE.variables))
    slice_cost = cost("sharded-update", step, min_bytes=1)
    assert (slice_cost.all_reduce_s, slice_cost.reduce_scatter_s) == (cost("all-reduce").all_reduce_s, None)
    assert slice_cost.collectives.all_gather_bytes == GRADIENT_BYTES


def test_each_crossing_of_a_gradient_counts_and_so_does_shared_state():
    step = step_of(trainable("w", 1000, crossings=2), state("mean", 50), state("seed", 2, rule="per-replica"))
    assert cost("all-reduce", step).collectives.all_reduce_bytes == 2 * 4000 + 200


def test_an_average_is_spread_over_its_period():
    table = trainable("table", 50, 8, sparse=True, rows_per_example=3.0)
    slice_cost = cost("local-sgd", step_of(*DENSE.variables, table), period=4)
    assert slice_cost.collectives.all_reduce_bytes == (GRADIENT_BYTES + 4 * 50 * 8) / 4
    assert not slice_cost.collectives.left_out


def test_encodings_are_added_up_or_gathered():
    halves = cost("all-reduce", compressor="bf16")
    assert halves.all_reduce_s == pytest.approx(cost("all-reduce").all_reduce_s / 2)
    signs = cost("all-reduce", step_of(trainable("w", 3200, 100)), compressor="signsgd-ef").collectives
    assert (signs.all_reduce_bytes, signs.all_gather_bytes) == (0, N * (4 + 320_000 / 8))


def test_what_does_not_travel_by_collectives_is_named():
    table = trainable("table", 50, 8, sparse=True, rows_per_example=3.0)
    step = step_of(*DENSE.variables, table)
    assert cost("all-reduce", step).collectives.left_out == ("table",)
    assert cost("all-reduce", step).all_reduce_s == cost("all-reduce").all_reduce_s
    served = cost("ps", step)
    assert set(served.collectives.left_out) >= {"kernel", "other", "table"}
    assert (served.total_s, served.all_reduce_s) == (0, None)


def test_dense_gradients_of_a_table_count():
    table = trainable("table", 50, 8, sparse=True, rows_per_example=3.0, crossings=2, dense_crossings=1)
    collectives = cost("all-reduce", step_of(table)).collectives
    assert (collectives.all_reduce_bytes, collectives.left_out) == (4 * 50 * 8, ("table",))


def test_without_communication_it_costs_nothing():
    slice_cost = cost("none")
    assert (slice_cost.total_s, slice_cost.collectives.left_out) == (0, ())
    alone = cost("single", on=parse_slice("v5e:1x1"), replicas_per_task=(1,))
    assert alone.total_s == 0


def test_two_devices_of_a_chip_share_its_links():
    """16 replicas on 8 chips send what 8 on as many chips do."""
    sixteen = cost("all-reduce", on=parse_slice("v7x:2x2x2"), replicas_per_task=(8, 8))
    assert sixteen.all_reduce_s == pytest.approx(2 * (N - 1) / N * GRADIENT_BYTES / (3 * 100e9))


def test_another_number_of_replicas_is_refused():
    with pytest.raises(StrategyError, match="must have a device for each replica, got 8 of v4:2x2x2 for 4"):
        cost("all-reduce", replicas_per_task=(4,))
