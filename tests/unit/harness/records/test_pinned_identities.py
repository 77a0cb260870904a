"""What stored runs are found and compared by: who changes one of these cuts new runs off from old ones."""

from dataclasses import replace

import pytest
from open_folders import made_record

from harness import errors
from harness.experiment.cases import expand
from harness.experiment.load import load_experiment
from harness.records.comparing.comparison_key import comparison_key
from harness.records.facts.circumstances import Machine, Method
from harness.records.facts.links import Link


@pytest.mark.parametrize(
    ("experiment", "hashed", "n_cases", "first", "last"),
    [
        (
            "quickstart",
            "1c8f628d4a550543f507392ea60eab2af6205d8e9b5b56c7875911ee7004adec",
            15,
            "digits-cnn-single-1x1-c36ed2ba",
            "dlrm-tf-multi-worker-mirrored-2x1-a0e30011",
        ),
        (
            "rivals",
            "a4f1c442dc9446cf2f16e64d4604459b5fba5f478626acc23b6dcecb806b0c9a",
            180,
            "digits-cnn-single-1x1-cda0b9f0",
            "dlrm-tf-parameter-server-2x1-104f2542",
        ),
        (
            "link-sweep",
            "7834c522e22103d994de51b86eb54a6d52872a0e9559c80fa36c65e80a0d2e58",
            16,
            "wide-mlp-single-1x1-6506dc4e",
            "wide-mlp-all-reduce-2x1-9c4413da",
        ),
    ],
)
def test_experiments_and_cases(experiment: str, hashed: str, n_cases: int, first: str, last: str) -> None:
    spec = load_experiment(experiment)
    cases = expand(spec)
    assert spec.spec_hash == hashed
    assert (len(cases), cases[0].id, cases[-1].id) == (n_cases, first, last)


def test_comparison_key() -> None:
    record = made_record(
        workload_params={"units": 16},
        strategy_params={"staleness": 2},
        batch_size=64,
        link=Link(requested_mbit=100.0),
        machine=Machine(cpu_model="cpu", n_cores=2, memory_bytes=1, kernel="6", architecture="x86_64"),
        method=Method(
            seed=1,
            steps=50,
            warmup_rule="auto",
            interleave=True,
            batch_rule="global",
            cores_per_worker=1,
            memory_per_worker_bytes=1,
            pinned=True,
        ),
    )
    assert comparison_key(record) == "1cc6175f67419755"
    assert record.method is not None
    of_pipeline = replace(record, method=replace(record.method, input="pipeline"))
    assert comparison_key(of_pipeline) != comparison_key(record)


def test_exit_statuses() -> None:
    assert (errors.EXIT_OK, errors.EXIT_CASE, errors.EXIT_USAGE, errors.EXIT_MISSING) == (0, 1, 2, 3)
    assert (errors.EXIT_REGRESSION, errors.EXIT_INTERRUPTED) == (4, 130)
