"""The control, which a run that asks for exposed communication cannot do without."""

from harness.experiment.cases import Case, expand
from harness.experiment.load import resolve


def cases(*strategies: str, exposed: bool = True, workers: int | list[int] = 2) -> tuple[Case, ...]:
    spec = resolve(
        {
            "name": "x",
            "workloads": ["digits-mlp"],
            "strategies": list(strategies),
            "cluster": {"workers": workers},
            "measure": {"exposed_comm": exposed},
        }
    )
    assert resolve(spec.to_document()) == spec
    return expand(spec)


def test_it_is_added_once_for_each_shape() -> None:
    plain = cases("single", "ps", "all-reduce", exposed=False, workers=[2, 3])
    all_cases = cases("single", "ps", "all-reduce", workers=[2, 3])
    assert all_cases[: len(plain)] == plain
    assert [(str(case.strategy), case.shape.workers) for case in all_cases[len(plain) :]] == [
        ("none", 2),
        ("none", 3),
    ]


def test_it_is_the_case_that_a_person_would_have_asked_for() -> None:
    assert set(cases("ps")) == set(cases("ps", "none", exposed=False)) == set(cases("ps", "none"))


def test_it_makes_updates_as_the_case_does() -> None:
    all_cases = cases("ps", "ps:fused_update=false", "tf-multi-worker-mirrored")
    assert [str(case.strategy) for case in all_cases[3:]] == ["none", "none:fused_update=false"]


def test_one_worker_exposes_nothing() -> None:
    assert [str(case.strategy) for case in cases("single")] == ["single"]
