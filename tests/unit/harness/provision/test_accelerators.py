""" """

import os
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from harness.cluster import ClusterShape, Device
from harness.provision import accelerators, local
from harness.provision.accelerators import (
    Gpu,
    HostDevices,
    devices_of_workers,
    gpus_per_worker,
    host_devices,
    replicas_on_gpus,
    shared_memory_mib,
    shared_out,
)
from harness.provision.docker.engine import Toolkit, device_arguments, lack_of_toolkit, toolkit_of
from harness.provision.failures import ProvisionError
from harness.provision.registry import provider_of
from harness.provision.worker_environment import process_variables

UUIDS = tuple(f"GPU-{k}a0b1c2d-0000-1111-2222-333344445555" for k in range(4))
FOUR = HostDevices(gpus=tuple(Gpu(uuid=uuid, name="NVIDIA T") for uuid in UUIDS))
LISTING = "".join(f"{uuid}, NVIDIA T\n" for uuid in UUIDS)


def shape(workers: int, replicas: int, device: Device = "gpu") -> ClusterShape:
    return ClusterShape(workers=workers, replicas_per_worker=replicas, device=device)


class Host:
    """A file system with the traces of devices, and a program that lists GPUs."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def file(self, path: str, text: str = "") -> "Host":
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)
        return self

    def program(self, script: str) -> str:
        self.file("bin/nvidia-smi", f"#!/bin/sh\n{script}\n")
        (self.root / "bin/nvidia-smi").chmod(0o755)
        return str(self.root / "bin/nvidia-smi")

    def found(
        self, script: str | None = None, mask: str = "0,1,2,3", order: str = "FASTEST_FIRST"
    ) -> HostDevices:
        program = str(self.root / "absent") if script is None else self.program(script)
        return host_devices(self.root, nvidia_smi=program, mask=mask, order=order)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.fixture
def with_driver(host: Host) -> Host:
    host.file("listing", LISTING)
    return host.file("dev/nvidiactl")


class TestLooking:
    def test_a_host_without_a_driver_is_not_asked(self, host: Host) -> None:
        assert host.found(f"touch {host.root}/asked") == HostDevices()
        assert not (host.root / "asked").exists()

    def test_gpus_are_listed_by_what_never_changes(self, with_driver: Host) -> None:
        assert with_driver.found(f"cat {with_driver.root}/listing") == FOUR

    @pytest.mark.parametrize(
        ("mask", "outputs"),
        [
            ("2,0", (2, 0)),
            (f"{UUIDS[3]},1", (3, 1)),
            (UUIDS[1][:6], (1,)),
            ("1,9,2", (1,)),
            ("-1", ()),
            ("", ()),
            ("0,0", (0,)),
        ],
    )
    def test_what_the_user_hides_is_not_used(
        self, with_driver: Host, mask: str, outputs: tuple[int, ...]
    ) -> None:
        devices = with_driver.found(f"cat {with_driver.root}/listing", mask)
        assert [gpu.uuid for gpu in devices.gpus] == [UUIDS[k] for k in outputs]
        assert devices.n_hidden == 4 - len(outputs)

    def test_numbers_of_unlike_gpus_are_those_of_the_bus_or_refused(self, with_driver: Host) -> None:
        with_driver.file("listing", LISTING.replace("NVIDIA T", "NVIDIA S", 1))
        script = f"cat {with_driver.root}/listing"
        (output,) = with_driver.found(script, "2", "PCI_BUS_ID").gpus
        assert output.uuid == UUIDS[2]
        (output,) = with_driver.found(script, UUIDS[2]).gpus
        assert output.uuid == UUIDS[2]
        assert with_driver.found(script, "-1").n_hidden == 4
        with pytest.raises(ProvisionError, match=r"got CUDA_VISIBLE_DEVICES=2, which counts .*; name UUIDs"):
            shared_out(with_driver.found(script, "2"), shape(1, 1))

    def test_parts_of_gpus_are_told_apart_from_hidden_ones(self, with_driver: Host) -> None:
        devices = with_driver.found(f"cat {with_driver.root}/listing", "MIG-1a2b3c4d")
        with pytest.raises(
            ProvisionError, match=r"got CUDA_VISIBLE_DEVICES=MIG-1a2b3c4d, .*\(MIG\)"
        ) as failure:
            shared_out(devices, shape(1, 1))
        assert "name UUIDs of whole GPUs" in failure.value.way_out

    @pytest.mark.parametrize(
        ("script", "reason"),
        [
            ("cat {}/listing", "got 4 that CUDA_VISIBLE_DEVICES hides; unset it, or set"),
            ("true", "got a driver that shows none; start this container or machine with GPUs, or set"),
        ],
    )
    def test_a_driver_without_usable_gpus(self, with_driver: Host, script: str, reason: str) -> None:
        devices = with_driver.found(script.format(with_driver.root), "-1")
        with pytest.raises(ProvisionError, match=reason):
            shared_out(devices, shape(1, 1))

    def test_a_driver_that_cannot_be_asked(self, with_driver: Host) -> None:
        assert with_driver.found().no_gpus[0] == "no program nvidia-smi"
        failed = with_driver.found("echo 'NVIDIA-SMI has failed\nbecause' >&2; exit 9")
        assert failed.no_gpus[0] == "from nvidia-smi: NVIDIA-SMI has failed because"

    def test_chips_of_tpus_are_found_by_their_nodes(self, host: Host) -> None:
        for chip in (10, 9, 0):
            host.file(f"dev/accel{chip}")
        assert host.found().tpus == ("/dev/accel0", "/dev/accel9", "/dev/accel10")

    def test_of_what_vfio_hands_out_only_tpus_count(self, host: Host) -> None:
        host.file("dev/vfio/vfio")
        for group, vendor in (("7", "0x1ae0"), ("8", "0x15b3")):
            host.file(f"dev/vfio/{group}")
            host.file(f"sys/kernel/iommu_groups/{group}/devices/0000:00:05.0/vendor", f"{vendor}\n")
        assert host.found().tpus == ("/dev/vfio/7",)


class TestPreflight:
    @pytest.mark.parametrize(
        ("devices", "message"),
        [
            (HostDevices(), "got a host without NVIDIA's driver (no /dev/nvidiactl); install it, or set"),
            (HostDevices(no_gpus=("no program nvidia-smi", "mend it")), "got no program nvidia-smi; mend it"),
        ],
    )
    def test_a_host_without_gpus(self, devices: HostDevices, message: str) -> None:
        with pytest.raises(ProvisionError) as caught:
            shared_out(devices, shape(1, 1))
        assert str(caught.value).startswith(f"cluster.device: device gpu needs GPUs, {message}")
        assert str(caught.value).endswith("set cluster.device=cpu")
        assert "\n" not in str(caught.value)
        assert caught.value.exit_status == 3

    def test_a_host_without_tpus(self) -> None:
        with pytest.raises(ProvisionError, match="device tpu needs TPU chips, got a host with neither"):
            shared_out(FOUR, shape(1, 1, "tpu"))

    @pytest.mark.parametrize(
        ("workers", "replicas", "expected"),
        [
            (1, 5, "cluster.replicas_per_worker: 1 worker of 5 replicas needs 5 GPUs, got 4 on this host; "),
            (2, 6, "cluster.replicas_per_worker: 2 workers of 6 replicas need 12 GPUs, got 4 on this host; "),
            (
                5,
                1,
                "cluster.workers: 5 workers of 1 replica need 5 GPUs, got 4 on this host; lower it, or share",
            ),
            (2, 3, "need 6 GPUs, got 4 on this host; lower it, or cluster.replicas_per_worker, or share"),
        ],
    )
    def test_fewer_than_asked(self, workers: int, replicas: int, expected: str) -> None:
        with pytest.raises(ProvisionError) as caught:
            shared_out(FOUR, shape(workers, replicas))
        assert expected in str(caught.value)
        assert str(caught.value).endswith(
            "or share GPUs to try a plan: --set cluster.share_gpus=true, or verify --share-gpus"
        )

    def test_fewer_chips_than_asked_and_hidden_gpus(self) -> None:
        with pytest.raises(ProvisionError, match="need 2 TPUs, got 1 on this host; lower it"):
            shared_out(HostDevices(tpus=("/dev/accel0",)), shape(2, 1, "tpu"))
        hidden = replace(FOUR, gpus=FOUR.gpus[:1], n_hidden=3)
        with pytest.raises(ProvisionError, match="got 1 on this host, and 3 that CUDA_VIS"):
            shared_out(hidden, shape(2, 1))

    @pytest.mark.parametrize("provider", ["local", "docker"])
    def test_a_host_is_not_looked_at_for_cpus(
        self, provider: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def look() -> HostDevices:
            raise AssertionError("looked")

        def go_on(*arguments: object) -> None:
            raise _WentOnError

        monkeypatch.setattr(accelerators, "host_devices", look)
        monkeypatch.setattr("harness.provision.local.reap", go_on)
        monkeypatch.setattr("harness.provision.docker.provider.worker_image", go_on)
        monkeypatch.setattr("harness.provision.docker.provider.engine", lambda: nullcontext(_Engine()))
        with pytest.raises(_WentOnError), provider_of(provider).start(shape(2, 9, "cpu"), "run", tmp_path):
            pass
        assert devices_of_workers(shape(2, 9, "cpu")) == ((), ())

    @pytest.mark.parametrize("provider", ["local", "docker"])
    def test_a_host_without_gpus_is_told_of_before_any_worker_is_started(
        self, provider: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(accelerators, "host_devices", HostDevices)
        monkeypatch.setattr("harness.provision.docker.provider.engine", lambda: nullcontext(_Engine()))
        with pytest.raises(ProvisionError, match="device gpu needs GPUs"):
            provider_of(provider).require(shape(1, 1))


class _WentOnError(Exception):
    """A provider has come to the step after the one that looks for devices."""


class _Engine:
    def info(self) -> dict[str, object]:
        return {"Runtimes": {"runc": {}}}


def test_no_two_workers_share_a_device() -> None:
    assert shared_out(FOUR, shape(2, 2)) == (UUIDS[:2], UUIDS[2:])


def test_workers_see_their_own_devices_and_no_others(tmp_path: Path) -> None:
    def seen(device: Device, *own: str) -> dict[str, str]:
        variables = process_variables(tmp_path, device, tmp_path, own)
        return {name: value for name, value in variables.items() if name.startswith(("CUDA_", "TPU_"))}

    by_bus = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert seen("gpu", *UUIDS[:2]) == by_bus | {"CUDA_VISIBLE_DEVICES": f"{UUIDS[0]},{UUIDS[1]}"}
    assert seen("gpu") == by_bus
    assert seen("cpu") == {"CUDA_VISIBLE_DEVICES": "-1"}
    assert seen("tpu", "3") == {
        "CUDA_VISIBLE_DEVICES": "-1",
        "TPU_VISIBLE_CHIPS": "3",
        "TPU_CHIPS_PER_HOST_BOUNDS": "1,1,1",
        "TPU_HOST_BOUNDS": "1,1,1",
    }
    assert seen("tpu", "0", "1", "2", "3") == {"CUDA_VISIBLE_DEVICES": "-1", "TPU_VISIBLE_CHIPS": "0,1,2,3"}


def test_chips_are_counted_by_their_place_and_not_by_the_numbers_of_their_groups() -> None:
    there = HostDevices(tpus=("/dev/vfio/7", "/dev/vfio/12"))
    assert shared_out(there, shape(2, 1, "tpu")) == (("0",), ("1",))


def test_a_local_run_refuses_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.provision.local.lack_of_tensorflow", lambda device: None)
    monkeypatch.setattr(accelerators, "host_devices", HostDevices)
    with (
        pytest.raises(ProvisionError, match="install it, or set cluster"),
        local.start(shape(1, 1), "run", tmp_path / "logs"),
    ):
        pass
    assert not (tmp_path / "logs").exists()


def test_a_tensorflow_without_the_devices_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    def only(*names: str) -> None:
        monkeypatch.setattr(accelerators, "_is_installed", lambda name: name in names)

    only("tensorflow-cpu")
    assert accelerators.lack_of_tensorflow("cpu") is None
    text = str(accelerators.lack_of_tensorflow("gpu"))
    assert "tensorflow in this environment, got tensorflow-cpu; run `make setup DEVICE=gpu`" in text
    only("tensorflow")
    assert accelerators.lack_of_tensorflow("gpu") is None
    assert "got tensorflow; use the image of `make image TARGET=tpu-head`" in str(
        accelerators.lack_of_tensorflow("tpu")
    )
    only("tensorflow-tpu")
    assert accelerators.lack_of_tensorflow("tpu") is None


class TestContainers:
    def test_an_engine_without_the_toolkit(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", os.devnull)
        problem = lack_of_toolkit(toolkit_of({"Runtimes": {"runc": {}}, "DiscoveredDevices": None}), UUIDS)
        assert problem is not None
        assert problem.exit_status == 3
        assert "has no NVIDIA container toolkit" in problem.problem
        assert "nvidia-ctk runtime configure" in problem.way_out

    @pytest.mark.parametrize(
        "facts",
        [
            {"Runtimes": {"runc": {}, "nvidia": {}}},
            {"DiscoveredDevices": [{"Source": "cdi", "ID": f"nvidia.com/gpu={UUIDS[0]}"}]},
        ],
    )
    def test_an_engine_with_it(self, facts: dict[str, object]) -> None:
        assert lack_of_toolkit(toolkit_of(facts), UUIDS[:1]) is None

    @pytest.mark.parametrize("names", [("0",), ("all",), (UUIDS[0], "0")])
    def test_an_engine_that_knows_gpus_by_other_names(
        self, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("PATH", os.devnull)
        cdi = [{"Source": "cdi", "ID": f"nvidia.com/gpu={name}"} for name in names]
        problem = lack_of_toolkit(toolkit_of({"DiscoveredDevices": cdi}), UUIDS[:2])
        assert problem is not None
        assert f"nvidia.com/gpu={names[-1]}" in problem.problem
        assert "nvidia-ctk cdi generate --device-name-strategy=uuid" in problem.way_out
        assert lack_of_toolkit(toolkit_of({"DiscoveredDevices": cdi}), ()) is None

    def test_gpus_are_asked_for_by_id(self) -> None:
        (request,) = device_arguments(UUIDS[:2], Toolkit(has_runtime=True))["device_requests"]
        assert request["DeviceIDs"] == list(UUIDS[:2])
        assert request["Capabilities"] == [["gpu", "compute", "utility"]]
        assert not request["Count"]

    def test_or_by_the_name_that_the_engine_knows(self) -> None:
        names = [f"nvidia.com/gpu={uuid}" for uuid in UUIDS]
        toolkit = Toolkit(has_runtime=False, cdi=frozenset(names))
        (request,) = device_arguments(UUIDS[:1], toolkit)["device_requests"]
        assert (request["Driver"], request["DeviceIDs"]) == ("cdi", names[:1])

    def test_containers_without_gpus_are_given_nothing(self) -> None:
        assert device_arguments((), Toolkit(has_runtime=True)) == {}


class TestSharing:
    """Replicas that may share GPUs go round them."""

    @pytest.fixture(autouse=True)
    def on_gpus(self, monkeypatch: pytest.MonkeyPatch) -> Callable[[int], HostDevices]:
        def on_gpus(n: int) -> HostDevices:
            gpus = tuple(replace(gpu, memory_mib=10_000) for gpu in FOUR.gpus[:n])
            monkeypatch.setattr(accelerators, "_gpus_here", lambda: gpus)
            return replace(FOUR, gpus=gpus)

        return on_gpus

    @pytest.mark.parametrize(
        ("n_gpus", "workers", "replicas", "numbers", "on_gpus_", "memory_mib"),
        [
            (1, 1, 2, ["0"], (2,), [[[4500, 4500]]]),
            (1, 2, 1, ["0", "0"], (2,), [[[4500]], [[4500]]]),
            (1, 2, 2, ["0", "0"], (4,), [[[2250] * 2]] * 2),
            (2, 1, 3, ["01"], (2, 1), [[[4500, 4500], [9000]]]),
            (2, 3, 1, ["0", "1", "0"], (2, 1), [[[4500]], [[9000]], [[4500]]]),
            (3, 2, 2, ["01", "20"], (2, 1, 1), [[[4500], [9000]], [[9000], [4500]]]),
            (4, 2, 2, ["01", "23"], (), []),
            (2, 1, 1, ["0"], (), []),
        ],
    )
    def test_nobody_shares_where_there_are_enough(
        self,
        on_gpus: Callable[[int], HostDevices],
        n_gpus: int,
        workers: int,
        replicas: int,
        numbers: list[str],
        on_gpus_: tuple[int, ...],
        memory_mib: list[list[list[int]]],
    ) -> None:
        devices = on_gpus(n_gpus)
        sharing = replace(shape(workers, replicas), share_gpus=True)
        assert shared_out(devices, sharing) == tuple(tuple(UUIDS[int(k)] for k in own) for own in numbers)
        assert {gpus_per_worker(sharing)} == {len(own) for own in numbers}
        assert replicas_on_gpus(sharing) == on_gpus_
        assert [[list(parts) for parts in own] for own in shared_memory_mib(sharing)] == memory_mib
        assert replicas_on_gpus(shape(workers, replicas)) == ()
        assert shared_memory_mib(shape(workers, replicas)) == ()

    def test_a_case_has_the_gpus_of_the_workers_that_it_runs_on(
        self, on_gpus: Callable[[int], HostDevices]
    ) -> None:
        devices = on_gpus(3)
        whole, case = (replace(shape(workers, 2), share_gpus=True) for workers in (3, 2))
        assert shared_out(devices, whole)[1:] == ((UUIDS[2], UUIDS[0]), (UUIDS[1], UUIDS[2]))
        assert shared_memory_mib(case, first=1) == (((4500,), (9000,)), ((9000,), (4500,)))

    def test_a_host_without_gpus_plans_for_one(self, on_gpus: Callable[[int], HostDevices]) -> None:
        on_gpus(0)
        assert replicas_on_gpus(replace(shape(2, 1), share_gpus=True)) == (2,)
        assert replicas_on_gpus(replace(shape(1, 1), share_gpus=True)) == ()

    def test_a_gpu_of_unknown_memory_is_not_shared(self) -> None:
        sharing = replace(shape(5, 1), share_gpus=True)
        with pytest.raises(
            ProvisionError,
            match="nvidia-smi reports no memory size of NVIDIA T, which replicas would share; lower",
        ):
            shared_out(FOUR, sharing)

    @pytest.mark.parametrize(("size", "memory_mib"), [("81559", 81559), ("[N/A]", None)])
    def test_the_driver_says_how_much_memory_there_is(
        self, host: Host, size: str, memory_mib: int | None
    ) -> None:
        devices = host.file("dev/nvidiactl").found(
            f"echo '{UUIDS[0]}, NVIDIA T, 570.1, {size}'", mask=UUIDS[0]
        )
        assert devices.gpus == (Gpu(uuid=UUIDS[0], name="NVIDIA T", memory_mib=memory_mib),)
