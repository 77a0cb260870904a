"""Simulated steps of plans: known formulas, and laws that hold for every strategy."""

import itertools

import numpy as np
import pytest
from planned_steps import DENSE, FREE, N_BYTES, STEP, STRATEGIES, USUAL, planned, profile

from harness.prediction.costs import Costs
from harness.prediction.step_model import Machines, processor_s, simulate_step

SLOW = 1e6
"""Bytes per second of a link that takes far longer than the computation."""
INSTANT = {"own": profile(DENSE, compute_s=1e-9, update_s=1e-9), "step": DENSE}
STATE_BYTES = 4 * 64


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_one_worker_pays_nothing_for_communication(strategy: str) -> None:
    simulated = simulate_step(planned(strategy, 1), USUAL, Machines())
    assert simulated.step_s == pytest.approx(profile().step_s)


def test_workers_without_exchanges_take_as_long_as_their_computation() -> None:
    assert simulate_step(planned("none", 3), USUAL, Machines()).step_s == pytest.approx(profile().step_s)


@pytest.mark.parametrize("n", [2, 3, 8])
def test_a_ring_sends_each_byte_almost_twice(n: int) -> None:
    """2(N-1)/N of the buffer: Patarasuk and Yuan 2009."""
    machines = Machines(link_bytes_per_s=SLOW)
    simulated = simulate_step(planned("all-reduce", n, **INSTANT), FREE, machines)
    expected_s = 2 * (n - 1) / n * (N_BYTES + STATE_BYTES) / SLOW
    assert simulated.step_s == pytest.approx(expected_s, rel=0.001)


def waiting_s(step, costs, *, cores=1.0) -> float:
    """Time that a step takes longer if exchanges vary by 30 %."""
    even_s, uneven_s = (
        simulate_step(step, costs.with_values({"exchange_variation": n}), Machines(cores=cores)).step_s
        for n in (0.0, 0.3)
    )
    return uneven_s - even_s


@pytest.mark.parametrize("cores", [1.0, 2.0])
@pytest.mark.parametrize(("n", "deviations"), [(1, 0.0), (2, 0.545), (8, 1.385)])
@pytest.mark.parametrize("strategy", ["all-reduce", "sharded-update", "fully-sharded"])
def test_workers_wait_for_the_slowest_exchange(
    strategy: str, n: int, deviations: float, cores: float
) -> None:
    """Median of the largest of n normal values, in standard deviations. Updates are no exchange."""
    even = FREE.with_values({f"tcp.{op}_s": 1e-6 for op in ("sum", "scatter", "gather")})
    step = planned(strategy, n)
    exchanging_s = max(processor_s(step, even)) - max(processor_s(step, FREE))
    assert (exchanging_s > 0) is (n > 1)
    expected_s = 0.3 * deviations * exchanging_s
    assert waiting_s(step, even, cores=cores) == pytest.approx(expected_s, rel=0.05, abs=1e-9)


def test_nobody_waits_for_a_server_that_always_has_more_to_do() -> None:
    """One server of 64 workers takes its mean time, whatever the others take."""
    costs = FREE.with_values({"servers.send_s": 1e-7, "servers.receive_s": 1e-7})
    alone, spread = (planned(strategy, 64) for strategy in ("ps", "sharded-ps"))
    assert waiting_s(alone, costs) == pytest.approx(0.0, abs=1e-6)
    exchanging_s = max(processor_s(spread, costs)) - max(processor_s(spread, FREE))
    assert waiting_s(spread, costs) > 0.3 * exchanging_s


def test_a_wait_once_in_a_period_counts_once() -> None:
    costs = FREE.with_values({"collectives.sum_s": 1e-6, "tcp.sum_s": 1e-6})
    often_s, seldom_s = (waiting_s(planned("local-sgd", 4, period=n), costs) for n in (1, 10))
    assert often_s == pytest.approx(10 * seldom_s, rel=0.01)
    assert often_s > 0 == waiting_s(planned("none", 4), costs)


def test_a_tensor_of_a_server_is_copied_before_it_is_sent() -> None:
    """The workers' own ring sends small pieces, and copies others in the meantime."""
    slow = Machines(link_bytes_per_s=SLOW)
    copied_s = N_BYTES / SLOW
    costs = FREE.with_values({"servers.send_s": 1 / SLOW, "tcp.sum_s": 1 / SLOW})
    ps, ring = planned("ps", 2, **INSTANT), planned("all-reduce", 2, **INSTANT)
    assert simulate_step(ring, costs, slow).step_s == pytest.approx(
        simulate_step(ring, FREE, slow).step_s, rel=0.001
    )
    more_s = simulate_step(ps, costs, slow).step_s - simulate_step(ps, FREE, slow).step_s
    # Three tensors in each direction: nothing is on the way while the first, a sixth, is copied, nor while
    # half of all is.
    assert more_s == pytest.approx(2 * (1 / 6 + 1 / 2) * copied_s, rel=0.01)


def test_a_burst_passes_a_limited_link_at_once() -> None:
    ring = planned("all-reduce", 2, own=profile(DENSE, compute_s=1.0, update_s=0.0), step=DENSE)
    limited, bursting = (
        simulate_step(ring, FREE, Machines(link_bytes_per_s=SLOW, link_burst_bytes=n)).step_s
        for n in (0.0, 100_000.0)
    )
    assert bursting == pytest.approx(limited - 100_000 / SLOW, rel=0.01)


@pytest.mark.parametrize("burst", [1e5, 1e6, 4e6])
def test_bursts_do_not_outrun_a_link_that_is_always_busy(burst: float) -> None:
    ring = planned("all-reduce", 2, own=profile(DENSE, compute_s=0.5, update_s=0.0), step=DENSE)
    step = simulate_step(ring, FREE, Machines(link_bytes_per_s=SLOW, link_burst_bytes=burst))
    assert step.step_s >= max(step.busy_s[way] for way in ("out 0", "in 0")) * 0.98


def test_latency_comes_before_the_bytes() -> None:
    """The workers' ring carries out one exchange after the other, each of 2(N-1) rounds."""
    step, machines = planned("all-reduce", 3, **INSTANT), Machines(link_bytes_per_s=SLOW)
    costs = FREE.with_values({"tcp.round_s": 0.5})
    free_s, late_s = (simulate_step(step, own, machines).step_s for own in (FREE, costs))
    assert late_s == pytest.approx(free_s + len(step.flows) * 2 * 2 * 0.5, rel=0.001)


@pytest.mark.parametrize(("transport", "n_hops"), [("tcp", [1, 4, 6]), ("ring", [2, 4, 6])])
def test_a_sum_needs_processor_time_for_each_hop(transport: str, n_hops: list[int]) -> None:
    """A ring of N members has 2(N-1) hops; the workers' own swaps the small values of two."""
    costs = FREE.with_values(dict.fromkeys(("tcp.hop_s", "collectives.hop_s"), 1.0))
    steps = [planned("all-reduce", n, step=DENSE, transport=transport) for n in (2, 3, 4)]
    free_s, own_s = (np.array([max(processor_s(step, own)) for step in steps]) for own in (FREE, costs))
    n_messages = sum(flow.n_messages for flow in steps[0].flows)
    assert own_s - free_s == pytest.approx(np.array(n_hops) * n_messages)


@pytest.mark.parametrize("n", [2, 3, 8])
def test_the_link_of_a_server_has_all_pulls_and_then_all_pushes(n: int) -> None:
    simulated = simulate_step(planned("ps", n, **INSTANT), FREE, Machines(link_bytes_per_s=SLOW))
    expected_s = 2 * (n - 1) * N_BYTES / SLOW
    assert simulated.step_s == pytest.approx(expected_s, rel=0.01)
    assert simulated.busy_s["out 0"] == pytest.approx(expected_s / 2, rel=0.01)


@pytest.mark.parametrize("n", [2, 4])
def test_sharded_updates_send_as_much_as_a_ring(n: int) -> None:
    machines = Machines(link_bytes_per_s=SLOW)
    all_reduce, sharded = (
        simulate_step(planned(strategy, n, **INSTANT), FREE, machines).step_s
        for strategy in ("all-reduce", "sharded-update")
    )
    assert sharded == pytest.approx(all_reduce, rel=0.05)


@pytest.mark.parametrize(("strategy", "n"), list(itertools.product(STRATEGIES, (2, 3))))
def test_a_slower_link_never_makes_a_step_faster(strategy: str, n: int) -> None:
    step = planned(strategy, n)
    rates = (None, 1.25e8, 3.75e7, 1.25e7, 1.25e6)
    durations_s = [simulate_step(step, USUAL, Machines(link_bytes_per_s=rate)).step_s for rate in rates]
    assert all(faster <= slower * (1 + 1e-9) for faster, slower in itertools.pairwise(durations_s))


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_no_step_is_faster_than_its_computation_or_its_processors(strategy: str) -> None:
    step = planned(strategy, 3)
    simulated = simulate_step(step, USUAL, Machines())
    # Owners and servers update for all others.
    assert simulated.step_s >= profile().compute_s
    assert simulated.step_s >= max(simulated.busy_s.values()) * (1 - 1e-9)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_processor_time_is_linear_in_the_costs(strategy: str) -> None:
    step = planned(strategy, 2)
    names = USUAL.flat()
    nothing = USUAL.with_values(dict.fromkeys(names, 0.0))
    base_s, usual_s = processor_s(step, nothing), processor_s(step, USUAL)
    twice_s = processor_s(step, USUAL.with_values({name: 2 * value for name, value in names.items()}))
    for base, usual, twice in zip(base_s, usual_s, twice_s, strict=True):
        assert twice - base == pytest.approx(2 * (usual - base))


def test_a_worker_waits_until_the_server_has_computed() -> None:
    """The server's thread goes on with its own step before it reads a variable for another."""
    step = planned("ps", 2, own=profile(compute_s=0.1, update_s=0.0))
    costs = FREE.with_values({"servers.request_s": 0.001})
    assert simulate_step(step, costs, Machines()).step_s == pytest.approx(0.2, rel=0.05)
    rings = planned("all-reduce", 2, own=profile(compute_s=0.1, update_s=0.0))
    assert simulate_step(rings, FREE, Machines()).step_s == pytest.approx(0.1, rel=0.01)


def test_a_server_looks_up_rows_once_it_has_their_ids() -> None:
    """A worker computes after its rows, which take one message more than whole variables: the ids."""
    costs = FREE.with_values({"servers.ids_s": 0.5})
    own = profile(STEP, compute_s=0.1, update_s=0.0)
    step_s = simulate_step(planned("ps", 2, own=own), costs, Machines()).step_s
    assert step_s == pytest.approx(0.5 + own.compute_s, rel=0.01)


@pytest.mark.parametrize("strategy", ["ps", "all-reduce", "all-reduce:transport=ring"])
def test_rows_cost_by_their_number(strategy: str) -> None:
    """Two workers look up 4,096 rows each."""
    names = ("servers.row_s", "tcp.row_s", "collectives.row_s")
    costs = FREE.with_values(dict.fromkeys(names, 1.0))
    step = planned(strategy, 2)
    free_s, own_s = processor_s(step, FREE), processor_s(step, costs)
    n_rows = [own - free for own, free in zip(own_s, free_s, strict=True)]
    # Each combines its own; the server looks up those of the other, and adds both; a member gets both.
    expected = [4 * 4096, 4096] if strategy == "ps" else [3 * 4096] * 2
    assert n_rows == pytest.approx(expected, rel=0.01)


def test_all_wait_for_a_slow_worker() -> None:
    step = planned("all-reduce", 3, own=profile(compute_s=0.1, update_s=0.0))
    slow = Machines(waits_s=(0.0, 0.2, 0.0))
    assert simulate_step(step, FREE, slow).step_s == pytest.approx(0.3, rel=0.01)


@pytest.mark.parametrize("strategy", ["none", "ps", "all-reduce"])
def test_workers_that_share_cores_take_turns(strategy: str) -> None:
    step = planned(strategy, 4)
    alone, all_own, uneven, half = (
        simulate_step(step, USUAL, Machines(n_shared=n)).step_s for n in (None, 4, 3, 2)
    )
    assert all_own == pytest.approx(alone, rel=0.05)
    own_s = processor_s(step, USUAL)
    # Workers 0 and 3 share a core of three; the others wait for them.
    assert (own_s[0] + own_s[3]) * 0.999 < uneven < half * 1.01
    assert (own_s[0] + own_s[2]) * 0.999 < half < 2.1 * alone


def test_an_average_every_few_steps_counts_with_its_share() -> None:
    machines = Machines(link_bytes_per_s=SLOW)
    rare, often = (
        simulate_step(planned("local-sgd", 2, period=period, **INSTANT), FREE, machines).step_s
        for period in (8, 2)
    )
    assert often == pytest.approx(4 * rare, rel=0.001)
    assert rare == pytest.approx((N_BYTES + STATE_BYTES) / 8 / SLOW, rel=0.02)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_alike_workers_are_simulated_once(strategy: str) -> None:
    """Classes of tasks grow with the variables that they own or serve, not with the tasks."""
    simulated = simulate_step(planned(strategy, 4096), USUAL, Machines())
    assert sum(map(len, simulated.members.values())) == 4096
    assert len(simulated.timeline.spans) < 300


def test_costs_are_listed_and_replaced_by_name() -> None:
    values = USUAL.flat()
    assert {"tcp.sum_s", "servers.receive_s", "codec bf16.value_s", "assign_s"} <= set(values)
    changed = {name: 2 * value for name, value in values.items()}
    assert USUAL.with_values(changed).flat() == changed
    assert USUAL.with_values({}) == USUAL
    assert Costs().flat().keys() < values.keys()
