"""Activities that share resources and take turns in lanes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.prediction.simulation import Activity, simulate


def test_an_activity_alone_takes_as_long_as_its_scarcest_resource() -> None:
    copy = Activity(name="copy", needs={"core": 1.0, "link": 300.0})
    timeline = simulate([copy], {"core": 1.0, "link": 100.0})
    assert timeline.end_s == pytest.approx(3.0)
    assert timeline.busy_s == pytest.approx({"core": 1.0, "link": 3.0})


def test_two_activities_share_a_core() -> None:
    both = [Activity(name=name, needs={"core": 1.0}) for name in ("one", "other")]
    assert simulate(both, {"core": 1.0}).end_s == pytest.approx(2.0)
    assert simulate(both, {"core": 2.0}).end_s == pytest.approx(1.0)


def test_what_waits_for_a_link_leaves_the_core_to_others() -> None:
    sending = Activity(name="send", needs={"core": 0.1, "link": 100.0})
    computing = Activity(name="compute", needs={"core": 0.9})
    assert simulate([sending, computing], {"core": 1.0, "link": 100.0}).end_s == pytest.approx(1.0)


def test_a_latency_needs_no_resource() -> None:
    waiting = Activity(name="wait", least_s=0.5)
    then = Activity(name="then", needs={"core": 0.25}, after=("wait",))
    timeline = simulate([waiting, then], {"core": 1.0})
    assert timeline.spans == {"wait": (0.0, 0.5), "then": (0.5, 0.75)}


def test_an_unlimited_resource_costs_no_time() -> None:
    assert simulate([Activity(name="send", needs={"link": 1e9})], {}).end_s == 0.0


def test_a_bucket_covers_what_fits_and_fills_while_its_resource_is_idle() -> None:
    first = Activity(name="first", needs={"link": 100.0})
    pause = Activity(name="pause", least_s=2.0, after=("first",))
    then = Activity(name="then", needs={"link": 100.0}, after=("pause",))
    timeline = simulate([first, pause, then], {"link": 10.0}, buckets={"link": 50.0})
    assert timeline.spans["first"] == pytest.approx((0.0, 5.0))
    assert timeline.spans["then"] == pytest.approx((7.0, 15.0))
    assert timeline.tokens == {"link": 0.0}
    again = simulate([first], {"link": 10.0}, buckets={"link": 50.0}, tokens=timeline.tokens)
    assert again.end_s == pytest.approx(10.0)


def test_a_request_waits_for_a_chain_that_holds_the_lane() -> None:
    """TensorFlow's executor goes on with the operation that follows, however long others wait."""
    chain = [
        Activity(name=f"own {k}", needs={"core": 1.0}, lane="thread", after=[f"own {k - 1}"] if k else ())
        for k in range(3)
    ]
    request = Activity(name="request", needs={"core": 0.5}, lane="thread")
    timeline = simulate([*chain, request], {"core": 1.0})
    assert timeline.spans["request"] == pytest.approx((3.0, 3.5))


def test_a_request_runs_while_the_chain_waits_for_something_else() -> None:
    arrival = Activity(name="arrival", least_s=2.0)
    first = Activity(name="first", needs={"core": 1.0}, lane="thread")
    second = Activity(name="second", needs={"core": 1.0}, lane="thread", after=("first", "arrival"))
    request = Activity(name="request", needs={"core": 0.5}, lane="thread")
    timeline = simulate([first, second, request, arrival], {"core": 1.0})
    assert timeline.spans["request"] == pytest.approx((1.0, 1.5))
    assert timeline.end_s == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("after", "message"), [(("a",), "'a' waits for itself"), (("b",), "waits for 'b', which is unknown")]
)
def test_an_impossible_order_is_refused(after: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        simulate([Activity(name="a", after=after)], {})


@st.composite
def steps(draw: st.DrawFn) -> list[Activity]:
    """Activities in an order in which each may wait for earlier ones."""
    amounts = st.floats(0.0, 10.0, allow_subnormal=False)
    activities: list[Activity] = []
    for k in range(draw(st.integers(1, 8))):
        earlier = [activity.name for activity in activities]
        activities.append(
            Activity(
                name=str(k),
                needs={
                    name: draw(amounts) for name in draw(st.sets(st.sampled_from(("core", "link", "disk"))))
                },
                least_s=draw(amounts),
                after=draw(st.lists(st.sampled_from(earlier), unique=True)) if earlier else (),
                lane=draw(st.sampled_from((None, "thread"))),
            )
        )
    return activities


@given(steps(), st.floats(0.1, 10.0), st.floats(0.1, 10.0))
def test_a_step_is_neither_faster_than_its_resources_nor_slower_than_one_by_one(
    activities: list[Activity], core: float, link: float
) -> None:
    rates = {"core": core, "link": link, "disk": 1.0}
    timeline = simulate(activities, rates)
    alone_s = [
        max(activity.least_s, 0.0, *(amount / rates[name] for name, amount in activity.needs.items()))
        for activity in activities
    ]
    assert timeline.end_s >= max(*timeline.busy_s.values(), *alone_s, 0.0) * (1 - 1e-9)
    assert timeline.end_s <= sum(alone_s) * (1 + 1e-9) + 1e-9
    for activity in activities:
        begun_s = timeline.spans[activity.name][0]
        assert all(timeline.spans[other][1] <= begun_s + 1e-9 for other in activity.after)
