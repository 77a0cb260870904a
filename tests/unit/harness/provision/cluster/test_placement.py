"""TPU slices for a run's workers, and the message if there is none."""

import itertools
import re
import subprocess
import sys
from contextlib import nullcontext
from typing import Any

import pytest

from harness.cluster import ClusterShape, Connection, Slice
from harness.errors import UsageError
from harness.experiment.load import resolve
from harness.experiment.model import Experiment
from harness.preflight import check_experiment
from harness.provision.cluster.placement import whole_slices
from harness.provision.cluster.tpu_slices import actor_options, facts_of
from harness.provision.failures import ProvisionError
from strategies.tpu_slices import GENERATIONS, Accelerator, parse_slice


def shape(workers: int, accelerator: Accelerator = "v4", topology: str = "2x2x2") -> ClusterShape:
    wanted = Connection(address="head:10001", slice=Slice(accelerator=accelerator, topology=topology))
    return ClusterShape(workers=workers, device="tpu", connection=wanted)


def on_slice(**cluster: Any) -> Experiment:
    section = {
        "provider": "cluster",
        "address": "head:10001",
        "device": "tpu",
        "workers": 2,
        "slice": {"accelerator": "v4", "topology": "2x2x2"},
    }
    return resolve(
        {"name": "x", "workloads": ["wide-mlp"], "strategies": ["ps"], "cluster": section | cluster}
    )


def host(
    name: str | None,
    number: int,
    *,
    kind: str = "v4-16",
    topology: str | None = None,
    tpus: int = 4,
    cpus: int = 8,
) -> dict[str, Any]:
    labels = {"ray.io/tpu-pod-type": kind}
    if topology is not None:
        labels["ray.io/tpu-topology"] = topology
    if name is not None:
        labels |= {"ray.io/tpu-slice-name": name, "ray.io/tpu-worker-id": str(number)}
    return {
        "Alive": True,
        "NodeID": f"node-{number}",
        "NodeManagerAddress": f"10.0.0.{number}",
        "Resources": {"CPU": cpus, "TPU": tpus},
        "Labels": labels,
    }


HEAD = {"Alive": True, "NodeID": "h", "NodeManagerAddress": "10.0.0.9", "Resources": {"CPU": 8}, "Labels": {}}


def names(results: list[list[dict[str, str]]]) -> list[list[tuple[str, str]]]:
    return [
        [(host["ray.io/tpu-slice-name"], host["ray.io/tpu-worker-id"]) for host in hosts] for hosts in results
    ]


def test_workers_take_all_chips_of_a_host() -> None:
    assert actor_options(shape(2)) == {"num_cpus": 1, "num_gpus": 0, "resources": {"TPU": 4}}


@pytest.mark.parametrize(
    ("cluster", "message"),
    [
        (
            {"workers": [2, 4]},
            "cluster.workers: must be 2 for a v4 slice 2x2x2, one on each of its hosts, got 4; set",
        ),
        (
            {"replicas_per_worker": [1, 5]},
            "cluster.replicas_per_worker: must be at most 4 for a v4 slice 2x2x2, the chips",
        ),
        (
            {"slice": {"accelerator": "v4", "topology": "2x2x3"}},
            "cluster.slice.topology: must be one that Ray reserves of v4, got 2x2x3; did you mean",
        ),
        (
            {"slice": {"accelerator": "v4", "topology": "1x2x2"}},
            "cluster.slice.topology: must be one that Ray reserves of v4, got 1x2x2; write it as 2x2x1",
        ),
        (
            {"slice": {"accelerator": "v4", "topology": "16x4x4"}},
            "cluster.slice.topology: must be one that Ray reserves of v4, got 16x4x4; write it as 4x4x16",
        ),
        (
            {"slice": {"accelerator": "v2", "topology": "2x2"}},
            "cluster.slice.topology: must be one that Ray reserves of v2, got 2x2; known are 4x4, ",
        ),
    ],
)
def test_what_no_slice_has_is_refused_before_anything_is_started(
    cluster: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=re.escape(message)) as raised:
        check_experiment(on_slice(**cluster))
    assert "\n" not in str(raised.value)


def test_a_check_leaves_it_to_the_provider_to_import_ray() -> None:
    code = (
        "import sys; from harness.provision.cluster import tpu_slices; "
        "from harness.cluster import Slice; "
        "tpu_slices.require_hosts(Slice(accelerator='v4', topology='2x2x2'), [1, 2], [4]); "
        "print('ray' in sys.modules)"
    )
    assert subprocess.check_output([sys.executable, "-c", code]) == b"False\n"


def test_hosts_come_in_the_order_of_the_slice_and_slices_that_lack_one_do_not() -> None:
    dead = {**host("c", 0), "Alive": False}
    there = [HEAD, host("b", 1), host("a", 1), host("b", 0), dead, host("c", 1), host("d", 0, kind="v4-8")]
    assert names(whole_slices(there, shape(2))) == [[("b", "0"), ("b", "1")]]


def test_slices_of_one_kind_are_told_apart_by_their_topology() -> None:
    there = [
        host(topology, number, kind="v6e-16", topology=topology)
        for topology in ("2x8", "4x4")
        for number in range(4)
    ]
    (hosts,) = whole_slices(there, shape(4, "v6e", "4x4"))
    assert [host["ray.io/tpu-slice-name"] for host in hosts] == ["4x4"] * 4
    assert {host["ray.io/tpu-topology"] for host in hosts} == {"4x4"}


def test_a_slice_of_one_host_needs_no_name() -> None:
    (hosts,) = whole_slices([HEAD, host(None, 3, kind="v4-8")], shape(1, topology="2x2x1"))
    assert hosts == [{"ray.io/tpu-pod-type": "v4-8"}]


@pytest.mark.parametrize(
    ("there", "message"),
    [
        (
            [HEAD],
            (
                "cluster.slice: must be there as v4-16 2x2x2, 2 hosts with 1 CPU and 4 TPU each, got no TPU "
                "on any of 1 nodes; start it, or name a slice that is there"
            ),
        ),
        ([HEAD, host("a", 1)], "got 1 of a; start it"),
        ([host("a", 0), host("a", 1, cpus=0)], "got 1 of a; start it"),
        (
            [host("a", 0, topology="4x4x1"), host("a", 1, topology="4x4x1")],
            "got 10.0.0.0 of v4-16 4x4x1 with 8 CPU and 4 TPU; 10.0.0.1 of v4-16 4x4x1 with",
        ),
        ([host("a", 0, kind="v4-8")], "got 10.0.0.0 of v4-8 with 8 CPU and 4 TPU; start it"),
    ],
)
def test_what_is_lacking_is_told_in_one_line(there: list[dict[str, Any]], message: str) -> None:
    with pytest.raises(ProvisionError, match=re.escape(message)) as raised:
        whole_slices(there, shape(2))
    assert raised.value.exit_status == 3
    assert "\n" not in str(raised.value)


def test_every_slice_of_rays_is_known_with_its_kind_and_hosts() -> None:
    from ray._private.accelerators.tpu import VALID_TPU_TOPOLOGY
    from ray.util.tpu import get_tpu_worker_resources, infer_tpu_pod_type_from_topology

    assert set(VALID_TPU_TOPOLOGY) == set(GENERATIONS)
    for accelerator, topologies in VALID_TPU_TOPOLOGY.items():
        for topology in topologies:
            assert parse_slice(f"{accelerator}:{topology}").accelerator == accelerator
            facts = facts_of(Slice(accelerator=accelerator, topology=topology))
            n_hosts, of_host = get_tpu_worker_resources(topology, accelerator)
            assert (facts.n_hosts, facts.chips_per_host) == (n_hosts, of_host["TPU"])
            assert facts.kind == infer_tpu_pod_type_from_topology(topology, accelerator)


def test_slices_that_ray_reserves_are_accepted_and_no_others() -> None:
    from ray._private.accelerators.tpu import TPUAcceleratorManager

    lengths = (1, 2, 3, 4, 8, 12, 16, 20, 24, 28, 32)
    boxes = [dims for n_axes in (2, 3) for dims in itertools.product(lengths, repeat=n_axes)]
    for accelerator in GENERATIONS:
        for topology in ("x".join(map(str, dims)) for dims in boxes):
            is_reserved = TPUAcceleratorManager.is_valid_tpu_accelerator_topology(accelerator, topology)
            with nullcontext() if is_reserved else pytest.raises(UsageError, match="Ray reserves"):
                facts_of(Slice(accelerator=accelerator, topology=topology))
