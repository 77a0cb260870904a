"""TensorFlow's own strategies update with rows of equal ids as their users see them: held to plain loops."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import repeated_rows
from repeated_rows import OPTIMIZERS
from rival_processes import Study, captures_in, started

from harness.cluster import ClusterShape
from harness.provision.child_processes import child_process
from harness.verification.captures import Captures
from harness.worker.jobs import training
from harness.worker.jobs.batches import read_batches
from harness.worker.variable_parts import values_of

pytestmark = pytest.mark.tensorflow

N_STEPS = 3
RIVALS = {"tf-mirrored": (1, 2), "tf-multi-worker-mirrored": (2, 1)}


def study_of(captures: Captures, strategy: str, optimizer: str) -> Study:
    workers, replicas = RIVALS[strategy]
    workload = f"{Path(repeated_rows.__file__)}:RepeatedRows:optimizer={optimizer}"
    return Study.of(captures, workload, strategy, ClusterShape(workers=workers, replicas_per_worker=replicas))


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Captures]:
    folder = tmp_path_factory.mktemp("captures")
    with captures_in(folder, n_batches=N_STEPS, n_least=N_STEPS) as captures:
        yield captures


@pytest.fixture(scope="module")
def plain(captures: Captures, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Mapping[str, Any]]:
    """Optimizer → variables after plain loops, which agree."""
    batches = read_batches(study_of(captures, "tf-mirrored", "adam").batches)
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PYTHONPATH", str(Path(__file__).parent))
        with child_process(tmp_path_factory.mktemp("plain")) as process:
            loops = process.call(repeated_rows.plain_loops, (batches,), timeout_s=120, stage="run")
    for alone, mirrored in loops.values():
        assert differing(mirrored, alone) == {}
    return {name: alone for name, (alone, _) in loops.items()}


@pytest.mark.parametrize("strategy", RIVALS)
def test_rows_of_equal_ids_reach_the_optimizer_one_by_one(
    captures: Captures, plain: Mapping[str, Mapping[str, Any]], strategy: str, tmp_path: Path
) -> None:
    studies = {name: study_of(captures, strategy, name) for name in OPTIMIZERS}
    wrong: dict[tuple[str, int | None], Mapping[str, float]] = {}
    with started(studies["adam"].plan, tmp_path) as processes:
        for name, study in studies.items():
            study.make_ready(processes)
            n_workers = len(processes.pids)
            processes.call(training.run_steps, [(N_STEPS, 0)] * n_workers, timeout_s=120)
            values = processes.call(training.read_variables, [()] * n_workers, timeout_s=120)
            copies = values_of(values)
            for rank in {rank for _, rank in copies}:
                own = {variable: value for (variable, r), value in copies.items() if r == rank}
                wrong[name, rank] = differing(own, plain[name])
    assert not any(wrong.values()), wrong


def differing(values: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, float]:
    """Variables that differ → by how much."""
    assert values.keys() == others.keys()
    apart = {name: float(np.max(np.abs(values[name] - others[name]))) for name in values}
    return {name: error for name, error in apart.items() if not error <= 1e-9}
