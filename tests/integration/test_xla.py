"""XLA on real workers: clusters are compiled and run, and what is computed stays the captured step's."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from harness.cluster import ClusterShape
from harness.errors import CaseError
from harness.experiment.cases import Case
from harness.experiment.model import Computation
from harness.experiment.references import WorkloadRef, parse_strategy
from harness.measure.timeouts import USUAL
from harness.planned_target import SEED
from harness.provision.child_processes import LocalWorkers, child_process
from harness.run.process_setup import PreparedCase, ready_processes
from harness.verification.captures import Captures, planned, planned_to_run
from harness.verification.checks import first_steps, reference_of
from harness.worker.jobs.xla import compiled_clusters

pytestmark = pytest.mark.tensorflow

N_STEPS = 2
# What moves between workers, and what only Python can run.
OUTSIDE = ("Collective", "PyFunc", "_Send", "_Recv")


def case_of(workload: str, strategy: str, *, xla: bool = True) -> Case:
    return Case(
        id="",
        workload=WorkloadRef(reference=workload),
        strategy=parse_strategy(strategy, field="strategy"),
        shape=ClusterShape(workers=2),
        computation=Computation(xla=xla),
    )


@pytest.fixture(scope="module")
def captures(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Captures]:
    folder = tmp_path_factory.mktemp("captures")
    with child_process(folder) as process:
        yield Captures(folder, process.call, seed=SEED, n_batches=N_STEPS, n_least=N_STEPS)


def prepared_of(captures: Captures, case: Case, folder: Path) -> PreparedCase:
    capture, plan = planned(captures, case)
    return PreparedCase(
        case=case,
        seed=SEED,
        capture=capture,
        plan=plan,
        batches=captures.batches(case, capture),
        logs=[folder / f"worker-{task}.log" for task in range(2)],
    )


# The first has dropout, whose numbers XLA would draw otherwise.
@pytest.mark.parametrize(
    ("workload", "strategy"),
    [("digits-cnn", "all-reduce"), ("digits-cnn", "ps"), ("digits-mlp", "all-reduce:transport=ring")],
)
def test_clusters_are_compiled_and_steps_are_equivalent(
    captures: Captures, workload: str, strategy: str, tmp_path: Path
) -> None:
    case = case_of(workload, strategy)
    prepared = prepared_of(captures, case, tmp_path)
    reference = reference_of(captures, case, prepared.capture, N_STEPS)
    with ready_processes(LocalWorkers(folder=tmp_path), prepared, USUAL) as (processes, _):
        verdict = reference.judge(first_steps(processes, N_STEPS))
        answers = processes.call(compiled_clusters, [(1,)] * 2, timeout_s=120)
    assert verdict.equivalent, verdict.reason
    for of_worker in answers:
        assert of_worker.n_clusters
        # Forward, its gradients and the update.
        assert of_worker.operations["MatMul"] > 2
        assert not of_worker.draws
        assert not [op for op in of_worker.operations if op.startswith(OUTSIDE)]


def test_without_it_nothing_is_compiled(captures: Captures, tmp_path: Path) -> None:
    prepared = prepared_of(captures, case_of("digits-mlp", "all-reduce", xla=False), tmp_path)
    with ready_processes(LocalWorkers(folder=tmp_path), prepared, USUAL) as (processes, _):
        answers = processes.call(compiled_clusters, [(1,)] * 2, timeout_s=120)
    assert [notes.n_clusters for notes in answers] == [0, 0]


def test_what_tensorflow_runs_in_a_way_of_its_own_is_skipped(captures: Captures) -> None:
    with pytest.raises(CaseError, match="must run as a graph of a session") as failure:
        planned_to_run(captures, case_of("digits-mlp", "tf-multi-worker-mirrored"))
    assert failure.value.kind == "unsupported"
