"""Cores of workers on the nodes of a cluster, which may be containers on one machine."""

import json
import shutil
import subprocess

import pytest

from harness.provision.cluster import hosts
from harness.provision.cluster.hosts import NodeAgent, NodeFacts, cores_of_workers
from harness.records.conditions import Machine


def node(name: str, boot: str, *cores: int) -> NodeFacts:
    return NodeFacts(
        node_id=name,
        address="10.0.0.1",
        addresses=(),
        source="",
        version="",
        cores=cores,
        boot=boot,
        machine=Machine(),
        clock_hz=3e9,
    )


@pytest.mark.parametrize(
    ("nodes", "cores_per_worker", "expected"),
    [
        ([node("a", "1", 0, 1), node("b", "2", 0, 1)], 2, [(0, 1), (0, 1)]),
        ([node("a", "1", 0, 1), node("b", "1", 0, 1)], 1, [(0,), (1,)]),
        ([node("a", "1", 0), node("b", "1", 1)], 1, [(0,), (1,)]),
        ([node("a", "1", 0, 1, 2, 3), node("a", "1", 0, 1, 2, 3)], 2, [(0, 1), (2, 3)]),
        # Where one must share, its neighbours would be unlike it with cores of their own.
        ([node("a", "1", 0), node("b", "1", 0), node("c", "2", 0)], 1, [None, None, (0,)]),
    ],
)
def test_no_core_has_two_workers(
    nodes: list[NodeFacts], cores_per_worker: int, expected: list[tuple[int, ...] | None]
) -> None:
    assert cores_of_workers(nodes, cores_per_worker, {}) == expected


@pytest.mark.parametrize(
    ("nodes", "fixed_cores", "expected"),
    [
        # In place of a node of another machine: the cores of its own.
        ([node("a", "3", 4, 5), node("b", "2", 0, 1)], {1: (0,)}, (4,)),
        # It has joined its neighbour's machine, and gets what that one left.
        ([node("a", "2", 0, 1), node("b", "2", 0, 1)], {1: (0,)}, (1,)),
        ([node("a", "2", 0), node("b", "2", 0)], {1: (0,)}, None),
        ([node("a", "2", 0, 1), node("b", "2", 0, 1)], {1: None}, None),
    ],
)
def test_a_worker_in_place_of_a_lost_one_has_cores_of_its_own_node(
    nodes: list[NodeFacts], fixed_cores: dict[int, tuple[int, ...] | None], expected: tuple[int, ...] | None
) -> None:
    assert cores_of_workers(nodes, 1, fixed_cores) == [expected, fixed_cores[1]]


@pytest.mark.skipif(shutil.which("ip") is None, reason="iproute2 is not installed")
def test_every_address_of_every_interface_is_known() -> None:
    addresses = subprocess.run(
        ["ip", "-json", "-4", "addr"], capture_output=True, check=True, text=True
    ).stdout
    entries = [entry for link in json.loads(addresses) for entry in link["addr_info"]]
    assert sorted(hosts._addresses()) == sorted(entry["local"] for entry in entries)


def test_the_way_to_a_peer_on_this_host_is_loopback() -> None:
    assert NodeAgent("unused").source_of("127.0.0.1") == "127.0.0.1"
