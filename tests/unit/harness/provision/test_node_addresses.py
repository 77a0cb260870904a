"""Where a node says that others may reach it, held against what the kernel's own tool says."""

import json
import shutil
import subprocess

import pytest

from harness.provision.cluster import node_agent
from harness.provision.cluster.node_agent import NodeAgent


@pytest.mark.skipif(shutil.which("ip") is None, reason="iproute2 is not installed")
def test_every_address_of_every_interface_is_known() -> None:
    told = subprocess.run(["ip", "-json", "-4", "addr"], capture_output=True, check=True, text=True).stdout
    entries = [entry for link in json.loads(told) for entry in link["addr_info"]]
    assert sorted(node_agent._addresses()) == sorted(entry["local"] for entry in entries)


def test_the_way_to_a_peer_on_this_host_is_loopback() -> None:
    assert NodeAgent("unused").source_of("127.0.0.1") == "127.0.0.1"
