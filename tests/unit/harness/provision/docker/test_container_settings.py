"""Folders of this host that containers see, and the parts of their image that stay visible."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from harness.provision.docker.container_settings import (
    ContainerLimits,
    RunPlace,
    create_arguments,
    is_of_image,
)


def arguments(own: Path, *, current: Path | None = None, folders: dict[Path, str] | None = None) -> Any:
    """Settings of a container whose run has its private folder there."""
    place = RunPlace(
        run_id="r",
        image="i",
        folder=own,
        token=own / "token",
        reads=(),
        writes=(),
        current=current,
        environment={},
    )
    network = cast("Any", SimpleNamespace(id="n"))
    return create_arguments(place, "worker-0", ContainerLimits(), network, folders or {})


def test_a_folder_is_seen_at_its_own_path_whatever_its_name_holds(tmp_path: Path) -> None:
    read, written = Path("/data/a:b"), Path("/data/run:1/cases")
    mounts = arguments(tmp_path, folders={read: "ro", written: "rw"})["mounts"]
    seen = {mount["Source"]: (mount["Type"], mount["Target"], mount["ReadOnly"]) for mount in mounts}
    assert seen[str(read)] == ("bind", str(read), True)
    assert seen[str(written)] == ("bind", str(written), False)
    assert seen[str(tmp_path / "token")] == ("bind", "/run/stratbench/token", True)
    assert len(seen) == 4


@pytest.mark.parametrize("folder", ["/opt/stratbench", "/opt", "/usr/local", "/"])
def test_a_current_folder_does_not_cover_what_the_image_has_there(tmp_path: Path, folder: str) -> None:
    assert is_of_image(Path(folder))
    assert folder not in arguments(tmp_path, current=Path(folder))["tmpfs"]
    assert "/opt/project" in arguments(tmp_path, current=Path("/opt/project"))["tmpfs"]


def test_the_environment_of_images_is_known_as_theirs() -> None:
    environment = Path(__file__).parents[5] / "harness" / "provision" / "image" / "environment"
    (target,) = [line for line in environment.read_text().splitlines() if line.startswith("target=")]
    assert is_of_image(Path(target.removeprefix("target=")))
