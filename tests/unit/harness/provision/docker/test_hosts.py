"""Logs that are kept of containers, whatever lies in place of them."""

import os
from pathlib import Path
from typing import Any, cast

import pytest

from harness.provision.docker.container_settings import RunPlace
from harness.provision.docker.containers import ContainerNode, Networks
from harness.provision.docker.hosts import ContainerHosts, log_of_host


class _Container:
    id = "c0"

    def __init__(self) -> None:
        self.is_removed = False

    def logs(self) -> bytes:
        return b"said\n"

    def remove(self, **_: object) -> None:
        self.is_removed = True


class _Place:
    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def ray_folder(self, role: str) -> Path:
        return self._folder / role


@pytest.fixture
def container() -> _Container:
    return _Container()


@pytest.fixture
def ray_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "ray-files" / "head"
    (folder / "session_2026" / "logs").mkdir(parents=True)
    return folder


@pytest.fixture
def hosts(tmp_path: Path, container: _Container, ray_folder: Path) -> ContainerHosts:
    place = cast("RunPlace", _Place(ray_folder.parent))
    container_hosts = ContainerHosts(cast("Any", None), place, cast("Networks", None), (), tmp_path / "logs")
    container_hosts._head = ContainerNode(
        role="head", container=cast("Any", container), control_address="", data_address=None
    )
    return container_hosts


def test_logs_are_kept_and_links_of_containers_are_not_followed(
    tmp_path: Path, hosts: ContainerHosts, container: _Container, ray_folder: Path
) -> None:
    secret = tmp_path / "secret"
    (secret / "logs").mkdir(parents=True)
    (secret / "logs" / "key").write_text("secret")
    logs = ray_folder / "session_2026" / "logs"
    (logs / "a-link.log").symlink_to(secret / "logs" / "key")
    os.mkfifo(logs / "b-pipe.log")
    (logs / "raylet.log").write_text("started")
    (ray_folder / "session_2025").symlink_to(secret)
    hosts.stop()
    log = log_of_host(tmp_path / "logs", "head")
    assert log.read_bytes() == b"said\n"
    assert sorted(path.name for path in log.parent.iterdir()) == sorted([log.name, "raylet.log"])
    assert (log.parent / "raylet.log").read_text() == "started"
    assert container.is_removed


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_container_is_removed_though_its_log_is_a_link(
    tmp_path: Path, hosts: ContainerHosts, container: _Container, is_folder: bool
) -> None:
    output = log_of_host(tmp_path / "logs", "head")
    link = output.parent if is_folder else output
    link.parent.mkdir(parents=True)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link.symlink_to(elsewhere if is_folder else elsewhere / "log")
    hosts.stop()
    assert container.is_removed
    assert list(elsewhere.iterdir()) == []
