"""Facts about the workers of a case, on machines with enough cores and with too few."""

import pytest

from harness.cluster import ClusterShape
from harness.provision.protocols import ClusterFacts

FACTS = ClusterFacts(notes=("of the workers",), n_cores=5)


@pytest.mark.parametrize(
    ("workers", "cores_per_worker", "note"),
    [
        (5, 1, None),
        (2, 2, None),
        (3, 2, "workers share cores: 6 cores wanted, 5 available"),
        (1, 6, "workers share cores: 6 cores wanted, 5 available"),
    ],
)
def test_a_case_states_its_own_lack_of_cores(workers: int, cores_per_worker: int, note: str | None) -> None:
    facts = FACTS.of_case(ClusterShape(workers=workers, cores_per_worker=cores_per_worker))
    assert facts.pinned is (note is None)
    assert facts.notes == (*(() if note is None else (note,)), "of the workers")


def test_unknown_cores_change_nothing() -> None:
    facts = ClusterFacts(pinned=False)
    assert facts.of_case(ClusterShape(workers=9)) is facts
