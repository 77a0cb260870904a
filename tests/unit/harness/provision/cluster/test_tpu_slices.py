"""Requirements of a run's workers on a cluster, and the message if they are not met."""

import re
from typing import Any

import pytest

from harness.cluster import ClusterShape, Connection
from harness.provision.cluster.tpu_slices import require_room
from harness.provision.failures import ProvisionError

PACK = Connection(address="head:10001", placement="pack")


def nodes(*resources: dict[str, float], alive: bool = True) -> list[dict[str, Any]]:
    return [
        {"Alive": alive, "NodeManagerAddress": f"10.0.0.{k}", "Resources": resource}
        for k, resource in enumerate(resources, 1)
    ]


HEAD: dict[str, float] = {"memory": 1.0}


@pytest.mark.parametrize(
    ("shape", "there"),
    [
        (ClusterShape(workers=2, cores_per_worker=2), nodes(HEAD, {"CPU": 2}, {"CPU": 4})),
        (ClusterShape(workers=3, cores_per_worker=2, connection=PACK), nodes({"CPU": 2}, {"CPU": 5})),
        (ClusterShape(workers=1, replicas_per_worker=2, device="gpu"), nodes({"CPU": 1, "GPU": 2})),
    ],
)
def test_what_suffices_is_taken(shape: ClusterShape, there: list[dict[str, Any]]) -> None:
    require_room(there, shape)


@pytest.mark.parametrize(
    ("shape", "there", "message"),
    [
        (
            ClusterShape(workers=2, cores_per_worker=2),
            nodes(HEAD, {"CPU": 4}),
            (
                "each of 2 workers needs a node of its own with 2 CPU, got 1 such among 2 nodes "
                "(10.0.0.1 has 0 CPU; 10.0.0.2 has 4 CPU); start more nodes, or lower cluster.workers, or "
                "let workers share nodes with cluster.placement=pack"
            ),
        ),
        (
            ClusterShape(workers=2),
            [*nodes({"CPU": 1}), *nodes({"CPU": 1}, alive=False)],
            (
                "each of 2 workers needs a node of its own with 1 CPU, got 1 such among 1 nodes "
                "(10.0.0.1 has 1 CPU); start more nodes, or lower cluster.workers"
            ),
        ),
        (
            ClusterShape(workers=4, cores_per_worker=2, connection=PACK),
            nodes({"CPU": 3}, {"CPU": 5}),
            "each of 4 workers needs room for 2 CPU, got 3 such among 2 nodes",
        ),
        (
            ClusterShape(workers=1, replicas_per_worker=2, device="gpu"),
            nodes({"CPU": 8, "GPU": 1}),
            "a node of its own with 1 CPU and 2 GPU, got 0 such among 1 nodes (10.0.0.1 has 8 CPU and 1 GPU)",
        ),
    ],
)
def test_what_is_lacking_is_told_in_one_line(
    shape: ClusterShape, there: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(ProvisionError, match=re.escape(message)) as raised:
        require_room(there, shape)
    assert raised.value.exit_status == 3
    assert "\n" not in str(raised.value)
