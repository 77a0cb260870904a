"""Tensors on connections: one after the other on each, and evenly between them."""

from harness.prediction.simulation import Timeline, simulate
from harness.prediction.step_activities import StepActivities, link_in, link_out

LINKS = {resource(number): 1.0 for resource in (link_out, link_in) for number in range(3)}
"""Links of three tasks, of one byte per second."""


def sent(*tensors: tuple[str, int, float]) -> Timeline:
    """Tensors of task 0, by name, receiver and bytes."""
    activities = StepActivities({number: [number] for number in range(3)}, n_shared=None)
    for name, receiver, n_bytes in tensors:
        activities.send(
            name,
            cpu={0: 0.0},
            least_s=0.0,
            after=[],
            connection=(0, receiver),
            out={0: n_bytes},
            into={receiver: n_bytes},
        )
    return simulate(activities.added, LINKS)


def test_a_small_tensor_arrives_after_a_large_one_of_the_same_connection() -> None:
    timeline = sent(("large", 1, 8.0), ("small", 1, 1.0))
    assert [timeline.spans[name][1] for name in ("large", "small")] == [8.0, 9.0]


def test_connections_share_a_link_evenly_however_many_tensors_they_have() -> None:
    timeline = sent(("first", 1, 2.0), ("second", 1, 2.0), ("other", 2, 4.0))
    assert [timeline.spans[name][1] for name in ("first", "second", "other")] == [4.0, 8.0, 8.0]
