"""TPU slices by name, and the links of their tori."""

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog

from strategies.errors import StrategyError
from strategies.tpu_slices import GENERATIONS, Torus, parse_slice


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
    assert parse_slice("v4:8x4x4").torus.links_in_use == parse_slice("v4:4x4x8").torus.links_in_use
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


def torus(*dims, wraps=True):
    wrapped = (wraps,) * len(dims) if isinstance(wraps, bool) else wraps
    return Torus(dims=dims, wrapped=wrapped, link_bytes_per_s=B)


axes = st.lists(st.tuples(st.integers(1, 32), st.booleans()), min_size=1, max_size=3)


def of_axes(drawn):
    dims, wrapped = zip(*drawn, strict=True)
    return torus(*dims, wraps=wrapped)


@pytest.mark.parametrize(
    ("result", "n_links"),
    [
        (torus(16), 2),
        (torus(7, wraps=False), 1),
        (torus(16, 16), 4),
        (torus(2, 2, 2, wraps=False), 3),
        (torus(2, 2, 1, wraps=False), 2),
        (torus(4, 4, 4), 6),
        # A ring of 16 has two links, a line of 8 one.
        (torus(8, 16, wraps=(False, True)), 3),
        (torus(1, 1, wraps=False), 0),
    ],
)
def test_hand_counted_links_of_a_corner(result, n_links):
    assert (result.links_in_use, result.chip_bytes_per_s) == (n_links, n_links * B)


@given(axes, st.randoms(use_true_random=False))
def test_the_order_of_axes_does_not_matter(drawn, random):
    shuffled = random.sample(drawn, len(drawn))
    assert of_axes(shuffled).chip_bytes_per_s == of_axes(drawn).chip_bytes_per_s


@given(axes)
def test_a_link_more_never_slows(drawn):
    ringed = torus(*(length for length, _ in drawn))
    assert 2 * len(drawn) * B >= ringed.chip_bytes_per_s >= of_axes(drawn).chip_bytes_per_s


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
    """Parts of some sizes, one for each order of the axes, keep all links busy: the shortest time."""
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
    n = shape.n_chips
    at_once = 0.0 if n == 1 else (n - 1) / n / shape.chip_bytes_per_s
    assert actual.fun == pytest.approx(at_once * B, rel=1e-6)


def _busy_s(result, order, axis):
    """Seconds × b that a share of a byte keeps the links of an end chip along an axis busy."""
    left = 1 / math.prod(result.dims[before] for before in order[: order.index(axis)])
    length, wraps = result.dims[axis], result.wrapped[axis]
    return left * (length - 1) / length / (1 + wraps)
