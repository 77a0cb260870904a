from collections.abc import Sequence
from importlib import metadata
from pathlib import Path

import pytest

from harness.errors import INSTALL
from harness.provision import accelerators, doctor
from harness.provision.accelerators import Gpu, HostDevices
from harness.worker.counters import network
from harness.worker.process.tensorflow_gpus import TensorFlowGpus


def test_every_check_that_fails_says_the_way_out() -> None:
    checks = doctor.checks()
    assert len({check.name for check in checks}) == len(checks)
    assert all(check.ok or check.way_out for check in checks)
    assert all(check.detail for check in checks)


def test_a_missing_package_is_required_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.metadata, "version", absent)
    missing = {check.name: check for check in doctor.checks() if not check.ok and check.required}
    assert set(missing) == {"tensorflow", "ray"}
    assert missing["ray"].way_out == INSTALL


def test_a_folder_that_is_gone_is_told(tmp_path: Path) -> None:
    (disk,) = _named(doctor.checks(tmp_path / "gone"), "disk")
    assert (disk.ok, disk.detail) == (False, "the current folder: No such file or directory")


def test_one_core_is_told_and_does_not_forbid_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "n_usable_cores", lambda: 1)
    (cores,) = _named(doctor.checks(), "cores")
    assert (cores.ok, cores.required) == (False, False)


def test_without_netlink_bytes_are_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(93, "Protocol not supported")

    monkeypatch.setattr(network.socket, "socket", refuse)
    (diag,) = _named(doctor.checks(), "inet-diag")
    assert not diag.ok
    assert "Protocol not supported" in diag.detail


def test_without_an_engine_docker_is_told_and_does_not_forbid_runs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    (check,) = _named(doctor.checks(), "docker")
    assert (check.ok, check.required) == (False, False)
    assert "none.sock" in check.detail
    assert "start" in check.way_out


def test_a_host_without_accelerators_is_told_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "host_devices", HostDevices)
    checks = doctor.checks()
    for name in ("gpu", "tpu"):
        (check,) = _named(checks, name)
        assert (check.ok, check.required) == (False, False)
    assert "install it" in _named(checks, "gpu")[0].way_out
    assert "Cloud TPU VM" in _named(checks, "tpu")[0].way_out
    assert _named(checks, "gpu-docker") == []


def test_accelerators_are_counted_and_what_each_provider_lacks_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    gpus = tuple(Gpu(uuid=f"GPU-{k}", name="NVIDIA T") for k in range(2))
    there = HostDevices(gpus=gpus, tpus=("/dev/accel0",))
    monkeypatch.setattr(doctor, "host_devices", lambda: there)
    monkeypatch.setattr(accelerators, "_is_installed", lambda name: name == "tensorflow-cpu")
    checks = doctor.checks()
    assert [check.detail for check in _named(checks, "gpu")] == ["2 x NVIDIA T"]
    assert [check.detail for check in _named(checks, "tpu")] == ["/dev/accel0"]
    assert not _named(checks, "gpu-docker")[0].ok
    (local,) = _named(checks, "gpu-local")
    assert (local.ok, local.required) == (False, False)
    assert (
        local.detail == "device gpu needs the distribution tensorflow in this environment, got tensorflow-cpu"
    )
    assert local.way_out.startswith("run `make setup DEVICE=gpu`")


@pytest.mark.parametrize(
    ("seen", "ok", "detail"),
    [
        (
            TensorFlowGpus(names=("NVIDIA T", "NVIDIA S"), cuda="12.5", cudnn="9"),
            True,
            "TensorFlow sees 1 x NVIDIA T, 1 x NVIDIA S (GPU-0, GPU-1); driver 580.1, CUDA 12.5, cuDNN 9",
        ),
        (
            TensorFlowGpus(names=("NVIDIA T",), cuda="12.5", missing=("libcusolver.so.11",)),
            False,
            (
                "TensorFlow sees 1 x NVIDIA T, and nvidia-smi shows 1 x NVIDIA S, 1 x NVIDIA T "
                "(driver 580.1): it cannot open libcusolver.so.11"
            ),
        ),
    ],
)
def test_gpus_of_tensorflow_are_held_to_those_of_the_driver(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seen: TensorFlowGpus, ok: bool, detail: str
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    gpus = tuple(Gpu(uuid=f"GPU-{k}", name=f"NVIDIA {'ST'[k]}") for k in range(2))
    there = HostDevices(gpus=gpus, driver="580.1")
    monkeypatch.setattr(doctor, "host_devices", lambda: there)
    monkeypatch.setattr(accelerators, "_is_installed", lambda name: name == "tensorflow")
    commands: list[str] = []

    def answer(environment: dict[str, str]) -> TensorFlowGpus:
        commands.append(environment["CUDA_VISIBLE_DEVICES"])
        return seen

    monkeypatch.setattr(doctor, "tensorflow_gpus", answer)
    (local,) = _named(doctor.checks(), "gpu-local")
    assert (local.ok, local.required, local.detail) == (ok, True, detail)
    assert bool(local.way_out) == (not ok)
    assert commands == ["GPU-0,GPU-1"]


@pytest.mark.parametrize(
    ("installed", "chips", "ok", "begins"),
    [
        ((), (), False, "none: no TensorFlow"),
        (("tensorflow-cpu",), (), True, "emulated: tpu-replicate by cluster.device=tpu-emulated"),
        (("tensorflow-cpu",), ("/dev/accel0",), True, "emulated: "),
        (
            ("tensorflow-tpu",),
            ("/dev/accel0", "/dev/accel1"),
            True,
            "real: tf-tpu and tpu-replicate by cluster.device=tpu, on 2 chips of this host",
        ),
    ],
)
def test_what_of_tpus_runs_here_is_told_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, installed: tuple[str, ...], chips: tuple[str, ...], ok: bool, begins: str
) -> None:
    def version(name: str) -> str:
        if name in installed:
            return "2.0"
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(doctor.metadata, "version", version)
    monkeypatch.setattr(doctor, "host_devices", lambda: HostDevices(tpus=chips))
    (check,) = _named(doctor.checks(), "tpu-strategies")
    assert (check.ok, check.required, bool(check.way_out)) == (ok, False, not ok)
    assert check.detail.startswith(begins)
    if begins.startswith("emulated"):
        assert ("tensorflow-tpu" if chips else "/dev/accel*") in check.detail
    if begins.startswith("real"):
        assert "compile its graph under TensorFlow's TPUStrategy" in check.detail


def _named(checks: Sequence[doctor.Check], name: str) -> list[doctor.Check]:
    return [check for check in checks if check.name == name]
