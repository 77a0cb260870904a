"""Arithmetic of a case's processes, and when it is set."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest
from fake_processes import FakeProcesses

from harness.cluster import ClusterShape
from harness.experiment.cases import Case
from harness.experiment.model import Computation
from harness.experiment.references import WorkloadRef, parse_strategy
from harness.measure.timeouts import USUAL
from harness.run import process_setup
from harness.run.process_setup import PreparedCase, ready_processes
from harness.worker.jobs.training import Opened
from harness.worker.process.job import job_name
from strategies.plan.schema import StepSummary
from strategies.topology import Topology


class Processes(FakeProcesses):
    """Remembers the jobs, and what they were given by keyword."""

    def __init__(self) -> None:
        super().__init__(["127.0.0.1"] * 2)
        self.jobs: list[tuple[str, Any]] = []

    def answer(self, job: Any, per_worker_args: Sequence[Any], stage: str) -> list[Any]:
        self.jobs.append((job_name(job), getattr(job, "keywords", {})))
        return [Opened(start=0, stop=4) for _ in per_worker_args]


def jobs_of(
    monkeypatch: pytest.MonkeyPatch, device: Any, strategy: str, tf32: bool | None, *, are_checked: bool
) -> list[tuple[str, Any]]:
    processes = Processes()

    @contextmanager
    def serving(*_: object, **__: object) -> Iterator[Processes]:
        yield processes

    monkeypatch.setattr(process_setup, "serving_processes", serving)
    case = Case(
        id="",
        workload=WorkloadRef(reference="w"),
        strategy=parse_strategy(strategy, field="strategy"),
        shape=ClusterShape(workers=2, device=device),
        computation=Computation(tf32=tf32),
    )
    summary = StepSummary(workload="w", variables=(), batch=(), n_nodes=1)
    topology = Topology(replicas_per_task=(1, 1), batch_size=8, device=case.shape.hardware)
    prepared = PreparedCase(
        case=case,
        seed=0,
        capture=cast("Any", type("Folder", (), {"folder": Path("c")})),
        plan=case.chosen.plan(summary, topology),
        batches=Path("b"),
        logs=[Path("0"), Path("1")],
    )
    with ready_processes(cast("Any", None), prepared, USUAL, are_checked=are_checked):
        pass
    return processes.jobs


@pytest.mark.parametrize("tf32", [True, False])
@pytest.mark.parametrize(
    ("strategy", "opens"),
    [("all-reduce", "open_program"), ("tf-multi-worker-mirrored", "open_baseline")],
)
def test_processes_with_gpus_are_told_before_their_first_step(
    monkeypatch: pytest.MonkeyPatch, strategy: str, opens: str, tf32: bool
) -> None:
    """And before the workload's own code runs, whose kernels would keep what they were first called with."""
    timed = jobs_of(monkeypatch, "gpu", strategy, tf32, are_checked=False)
    assert [name for name, _ in timed][:4] == ["set_tf32", opens, "set_tf32", "load"]
    assert timed[0][1] == timed[2][1] == {"tf32": tf32}
    checked = jobs_of(monkeypatch, "gpu", strategy, tf32, are_checked=True)
    assert [name for name, _ in checked][:4] == ["check_exactly", opens, "check_exactly", "load"]


@pytest.mark.parametrize("are_checked", [True, False])
def test_others_are_told_nothing(monkeypatch: pytest.MonkeyPatch, are_checked: bool) -> None:
    jobs = jobs_of(monkeypatch, "cpu", "all-reduce", None, are_checked=are_checked)
    assert [name for name, _ in jobs] == ["open_program", "load", "setup", "stage_batches"]
