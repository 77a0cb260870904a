"""How often Ray is started; tests of a real one are in integration/."""

import fcntl
import os
from pathlib import Path

import pytest
import ray

from harness.provision.failures import ProvisionError
from harness.provision.local.ray_instance import _alone, own_ray

OUT_OF_TIME = "The current node timed out during startup. This could happen because"


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[Exception | None]:
    """What comes of each start, the next first; None of one that works."""
    left: list[Exception | None] = []

    def init(*, _temp_dir: str, **_: object) -> None:
        Path(_temp_dir).mkdir()  # each has a folder of its own
        error = left.pop(0)
        if error is not None:
            raise error

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    return left


def test_a_start_that_runs_out_of_time_is_tried_once_more_and_noted(
    tmp_path: Path, starts: list[Exception | None]
) -> None:
    starts += [Exception(OUT_OF_TIME), None]
    with own_ray(tmp_path, n_actors=1, log_path=tmp_path / "ray.log") as started:
        assert started.is_up()
        assert started.notes == (f"Ray started at the second attempt: {OUT_OF_TIME}",)
    assert starts == []
    assert "RAY_AUTH_TOKEN_PATH" not in os.environ


def test_a_start_that_works_has_no_note(tmp_path: Path, starts: list[Exception | None]) -> None:
    starts.append(None)
    with own_ray(tmp_path, n_actors=1, log_path=tmp_path / "ray.log") as started:
        assert started.notes == ()


@pytest.mark.parametrize(
    "errors",
    [
        pytest.param([Exception(OUT_OF_TIME), Exception(OUT_OF_TIME)], id="twice out of time"),
        pytest.param([RuntimeError("no room in /dev/shm")], id="for another reason"),
    ],
)
def test_any_other_start_that_fails_is_an_error(
    tmp_path: Path, starts: list[Exception | None], errors: list[Exception]
) -> None:
    starts += errors
    with (
        pytest.raises(ProvisionError, match="local: Ray must start on this machine, got "),
        own_ray(tmp_path, n_actors=1, log_path=tmp_path / "ray.log"),
    ):
        pass
    assert starts == []


def test_only_one_run_at_a_time_starts_ray_and_leaves_nothing(tmp_path: Path) -> None:
    other = os.open(tmp_path, os.O_RDONLY)
    with _alone(tmp_path), pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)
    assert list(tmp_path.iterdir()) == []


def test_a_run_goes_on_where_the_lock_stays_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.provision.local.ray_instance._TURN_S", 0.0)
    with _alone(tmp_path), _alone(tmp_path):
        pass


def test_a_run_goes_on_where_nothing_can_be_locked(tmp_path: Path) -> None:
    with _alone(tmp_path / "absent"):
        pass
