""" """

import fcntl
import os
from collections import Counter
from pathlib import Path

import pytest
import ray
from hypothesis import given
from hypothesis import strategies as st

from harness.cluster import ClusterShape
from harness.provision import local
from harness.provision.failures import ProvisionError
from harness.provision.local import _one_start_at_a_time, core_sets, own_ray


@given(st.integers(1, 12), st.integers(1, 4), st.sets(st.integers(0, 63), min_size=1))
def test_workers_have_cores_of_their_own_or_share_disjoint_sets(
    workers: int, cores_per_worker: int, available: set[int]
) -> None:
    sets = core_sets(sorted(available), workers, cores_per_worker)
    assert len(sets) == workers
    different = Counter(sets)
    all_cores = [core for cores in different for core in cores]
    assert len(all_cores) == len(set(all_cores))
    assert set(all_cores) <= available
    assert {len(cores) for cores in sets} == {min(cores_per_worker, len(available))}
    assert max(different.values()) - min(different.values()) <= 1
    if workers * cores_per_worker <= len(available):
        assert len(different) == workers


def test_reading_the_provider_needs_no_ray() -> None:
    import subprocess
    import sys

    code = "import sys, harness.provision.local; print('ray' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], env=dict(os.environ)) == b"False\n"


def test_a_worker_whose_memory_the_machine_lacks_is_refused() -> None:
    shape = ClusterShape(workers=1, replicas_per_worker=1, memory_bytes=2**60)
    with pytest.raises(ProvisionError, match=r"must fit this machine, which has .* GiB; lower it") as refused:
        local.require(shape)
    assert refused.value.field == "cluster.memory_per_worker"


def test_too_many_workers_are_told_of_before_any_is_started() -> None:
    local.require(ClusterShape(workers=1, replicas_per_worker=1))
    with pytest.raises(ProvisionError, match="1000000 workers on this machine need at least"):
        local.require(ClusterShape(workers=1_000_000, replicas_per_worker=1))


OUT_OF_TIME = "The current node timed out during startup. This could happen because"


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> list[Exception | None]:
    """Results of the starts, the next first; None for one that works."""
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
        pytest.raises(ProvisionError, match="local: Ray did not start on this machine: "),
        own_ray(tmp_path, n_actors=1, log_path=tmp_path / "ray.log"),
    ):
        pass
    assert starts == []


def test_only_one_run_at_a_time_starts_ray_and_leaves_nothing(tmp_path: Path) -> None:
    other = os.open(tmp_path, os.O_RDONLY)
    with _one_start_at_a_time(tmp_path), pytest.raises(BlockingIOError):
        fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(other)
    assert list(tmp_path.iterdir()) == []


def test_a_run_goes_on_where_the_lock_stays_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("harness.provision.local._LOCK_WAIT_S", 0.0)
    with _one_start_at_a_time(tmp_path), _one_start_at_a_time(tmp_path):
        pass


def test_a_run_goes_on_where_nothing_can_be_locked(tmp_path: Path) -> None:
    with _one_start_at_a_time(tmp_path / "absent"):
        pass
