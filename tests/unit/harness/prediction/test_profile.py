"""Profiles of steps, from the times of traced operations."""

import json

import pytest

from harness.prediction.profile import (
    StepProfile,
    StoredProfile,
    VariableNodes,
    VariableTimes,
    profile_of,
    typical_profile,
)
from strategies.plan.schema import StepSummary

# Two layers, first to last and back, and their updates; between 5 and 6 nothing runs.
SPANS = {
    "forward_0": [(0.0, 1.0)],
    "forward_1": [(1.0, 2.0)],
    "backward_1": [(2.0, 4.0)],
    "backward_0": [(4.0, 5.0)],
    "update_1": [(6.0, 6.5)],
    "update_0": [(6.5, 7.5)],
    "count": [(7.5, 8.0)],
}
VARIABLES = {
    "first": VariableNodes(users=("forward_0", "backward_0"), makers=("backward_0",), updates=("update_0",)),
    "second": VariableNodes(users=("forward_1",), makers=("backward_1",), updates=("update_1",)),
    "steps": VariableNodes(updates=("gone",)),
}


def profiled(spans=SPANS) -> StepProfile:
    return profile_of(spans, VARIABLES, shared_updates=("count",), examples=8)


def test_moments_count_only_the_time_in_which_the_step_computes() -> None:
    profile = profiled()
    assert (profile.compute_s, profile.update_s) == pytest.approx((5.0, 2.0))
    assert profile.variables["first"] == VariableTimes(needed_s=0.0, ready_s=5.0, update_s=1.0)
    assert profile.variables["second"] == VariableTimes(needed_s=1.0, ready_s=4.0, update_s=0.5)
    assert profile.variables["steps"] == VariableTimes()


def test_a_loop_counts_each_of_its_turns() -> None:
    turns = {**SPANS, "forward_1": [(1.0, 1.25), (1.5, 2.0)]}
    profile = profiled(turns)
    assert profile.compute_s == pytest.approx(4.75)
    assert profile.variables["second"].needed_s == pytest.approx(1.0)


def test_operations_side_by_side_count_once() -> None:
    profile = profiled({**SPANS, "update_0": [(6.0, 7.0)], "update_1": [(6.0, 6.5)], "count": [(6.5, 7.0)]})
    assert profile.update_s == pytest.approx(1.0)
    assert sum(times.update_s for times in profile.variables.values()) == pytest.approx(0.75)


def test_a_profile_is_scaled_to_an_untraced_step() -> None:
    profile = profiled().scaled_to(3.5)
    assert profile.step_s == pytest.approx(3.5)
    assert profile.variables["second"].ready_s == pytest.approx(2.0)
    assert profile.variables["second"].update_s == pytest.approx(0.25)


def test_a_disturbed_step_does_not_count_among_several() -> None:
    disturbed = profiled({**SPANS, "forward_0": [(-9.0, 1.0)]})
    assert typical_profile([profiled(), disturbed, profiled()]) == profiled()


def test_parts_of_a_typical_step_do_not_exceed_it() -> None:
    """Each update takes long in two of three steps, both together in one."""
    slow_first = {**SPANS, "update_0": [(6.5, 7.4)], "update_1": [(6.0, 6.1)]}
    slow_second = {**SPANS, "update_0": [(6.5, 6.6)], "update_1": [(5.6, 6.5)]}
    both = {**SPANS, "update_0": [(6.5, 7.4)], "update_1": [(5.6, 6.5)]}
    profile = typical_profile([profiled(slow_first), profiled(slow_second), profiled(both)])
    assert sum(times.update_s for times in profile.variables.values()) <= profile.update_s
    assert max(times.ready_s or 0.0 for times in profile.variables.values()) <= profile.compute_s


def test_a_stored_profile_is_read_as_written() -> None:
    step = StepSummary(workload="two-layers", n_nodes=7, variables=(), batch=())
    stored = StoredProfile(step=step, profile=profiled())
    data = json.dumps(stored.to_document()).encode()
    assert StoredProfile.from_document(data) == stored


@pytest.mark.parametrize("data", [b"", b"{}", b'{"step": {}, "profile": 1}'])
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"invalid JSON|field required"):
        StoredProfile.from_document(data)
