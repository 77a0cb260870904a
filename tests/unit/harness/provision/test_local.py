import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.cluster.shape import ClusterShape
from harness.provision.failures import ProvisionError
from harness.provision.local.provider import LocalProvider, core_sets


@given(st.integers(1, 12), st.integers(1, 4), st.sets(st.integers(0, 63), min_size=1))
def test_cores_are_shared_out_disjoint_or_not_at_all(workers: int, each: int, available: set[int]) -> None:
    sets = core_sets(sorted(available), workers, each)
    assert len(sets) == workers
    given_out = [core for cores in sets if cores is not None for core in cores]
    if workers * each <= len(available):
        assert all(cores is not None and len(cores) == each for cores in sets)
        assert len(given_out) == len(set(given_out))
        assert set(given_out) <= available
    else:
        assert given_out == []


def test_reading_the_provider_needs_no_ray() -> None:
    import subprocess
    import sys

    code = "import sys, harness.provision.local.provider; print('ray' in sys.modules)"
    assert subprocess.check_output([sys.executable, "-c", code], env=dict(os.environ)) == b"False\n"


def test_a_worker_whose_memory_the_machine_lacks_is_refused() -> None:
    shape = ClusterShape(workers=1, replicas_per_worker=1, memory_bytes=2**60)
    with pytest.raises(ProvisionError, match=r"must fit this machine, which has .* GiB; lower it") as refused:
        LocalProvider().require(shape)
    assert refused.value.field == "cluster.memory_per_worker"


def test_too_many_workers_are_told_of_before_any_is_started() -> None:
    LocalProvider().require(ClusterShape(workers=1, replicas_per_worker=1))
    with pytest.raises(ProvisionError, match="1000000 workers on this machine need at least"):
        LocalProvider().require(ClusterShape(workers=1_000_000, replicas_per_worker=1))
