"""Collectives on meshes and tori: closed forms, laws, and schedules that reach them."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from strategies.tpu_slices import GENERATIONS, Torus

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
    ("made", "expected_s"),
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
def test_hand_computed(made, expected_s):
    assert made.all_reduce_s(S) == pytest.approx(expected_s)


@given(axes, payloads, payloads)
def test_more_bytes_never_take_less(drawn, one, other):
    made = of_axes(drawn)
    few, many = sorted((one, other))
    assert made.all_reduce_s(few) <= made.all_reduce_s(many)
    assert made.all_gather_s(few) <= made.all_gather_s(many)


@given(axes, payloads)
def test_no_faster_than_all_links_of_a_chip_allow(drawn, n_bytes):
    made = of_axes(drawn)
    n = made.n_chips
    least_s = (n - 1) / n * n_bytes / (2 * len(drawn) * B)
    assert made.reduce_scatter_s(n_bytes) >= least_s * (1 - 1e-12)


@given(axes, payloads, st.randoms(use_true_random=False))
def test_the_order_of_axes_does_not_matter(drawn, n_bytes, random):
    shuffled = random.sample(drawn, len(drawn))
    assert of_axes(shuffled).all_reduce_s(n_bytes) == of_axes(drawn).all_reduce_s(n_bytes)


@given(axes, payloads)
def test_a_link_more_never_slows(drawn, n_bytes):
    ringed = torus(*(length for length, _ in drawn))
    assert ringed.all_reduce_s(n_bytes) <= of_axes(drawn).all_reduce_s(n_bytes)


@pytest.mark.parametrize(
    "made",
    [torus(2, 2, 4, wraps=False), torus(8, 5, wraps=(False, True)), torus(4, 3, 5), torus(6), torus(1, 4)],
)
def test_links_are_those_of_the_graph(made):
    chips = list(itertools.product(*map(range, made.dims)))
    links = {chip: set(_neighbours(chip, made)) for chip in chips}
    assert made.links_in_use == min(map(len, links.values()))


def _neighbours(chip, made):
    for axis, (length, wraps) in enumerate(zip(made.dims, made.wrapped, strict=True)):
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
    made = torus(*dims, wraps=GENERATIONS[accelerator].wrapped(dims))
    n_axes = len(dims)
    orders = list(itertools.permutations(range(n_axes)))
    # Busy time of an axis for each share of one byte; the last column is the time of all.
    busy = [[_busy_s(made, order, axis) for order in orders] + [-1.0] for axis in range(n_axes)]
    found = linprog(
        c=[0.0] * len(orders) + [1.0],
        A_ub=busy,
        b_ub=[0.0] * n_axes,
        A_eq=[[1.0] * len(orders) + [0.0]],
        b_eq=[1.0],
    )
    assert found.fun == pytest.approx(made.reduce_scatter_s(1.0) * B, rel=1e-6)


def _busy_s(made, order, axis):
    """Seconds × b that a share of a byte keeps the links of an end chip along an axis busy."""
    left = 1 / math.prod(made.dims[before] for before in order[: order.index(axis)])
    length, wraps = made.dims[axis], made.wrapped[axis]
    return left * (length - 1) / length / (1 + wraps)
